"""A fleet of simulated workers answers, says that it simulates, counts, loses a worker, drains, and leaves nothing."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from benchmarks.fleet_client import tokens_request
from cli.admin_client.adapter_calls import AdapterName
from radixgate.v1 import inference_pb2
from tests.e2e.fleet import (
    Fleet,
    FleetPlan,
    client_of,
    complete,
    held_by,
    left_behind,
    request,
    running_fleet,
    streams_while,
    streams_with,
)
from tests.processes import wait_until
from tests.tools import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

SLOTS = 1 << 20


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    # Steps so slow that streams last while something is done to them, also on a busy machine.
    paced = ["worker.simulation.step_s=0.012", "worker.engine.max_running=64", "worker.drain_s=60"]
    settings = [f"worker.cache.num_slots={SLOTS}", *paced]
    with running_fleet(tmp_path_factory.mktemp("fleet"), FleetPlan(2, 1, settings)) as running:
        yield running
        pids = [running.redis.pid, *(each.pid for each in (*running.workers, *running.gateways) if each.runs)]
    wait_until(lambda: left_behind(pids) == [], what="every process gone")


async def test_the_same_question_has_the_same_answer_at_every_worker(fleet: Fleet) -> None:
    async with client_of(fleet) as client:
        for question in (request(0, 12), request(1, 12)):
            answers = [await client.ask(question) for _ in range(4)]
            assert all(complete(answer, 12) for answer in answers)
            assert len({tuple(answer.token_ids[0]) for answer in answers}) == 1
            assert len({answer.texts[0] for answer in answers}) == 1
            assert answers[0].texts[0].isascii()
    asked = fleet.worker_totals("radixgate_prompt_tokens_total")
    assert min(asked) > 0


async def test_a_simulated_worker_says_so(fleet: Fleet) -> None:
    async with client_of(fleet) as client:
        assert (await client.ask(request(2, 3))).simulated
    for worker in fleet.workers:
        assert worker.total("radixgate_worker_info", device="simulated", model="simulated") == 1
        assert any("simulates" in str(line.get("event")) for line in worker.log_lines())


async def test_hits_that_clients_are_told_of_are_those_that_workers_count(fleet: Fleet) -> None:
    def counted(name: str) -> float:
        return sum(fleet.worker_totals(name))

    names = ("radixgate_prompt_tokens_total", "radixgate_cached_tokens_total", "radixgate_computed_prompt_tokens_total")
    before = list(map(counted, names))
    async with client_of(fleet) as client:
        outcomes = await client.ask_all([request(number, 1) for number in range(10, 20)])
        outcomes += await client.ask_all([request(number, 1) for number in range(10, 20)])
        outcomes += await client.ask_all([request(number, 1) for number in range(10, 20)])
    assert all(complete(outcome, 1) for outcome in outcomes)
    told = [
        sum(outcome.usage.prompt_tokens for outcome in outcomes if outcome.usage),
        sum(outcome.cached for outcome in outcomes),
        sum(outcome.usage.computed_prompt_tokens for outcome in outcomes if outcome.usage),
    ]
    assert [now - then for then, now in zip(before, map(counted, names), strict=True)] == told
    assert told[1] >= 10 * 119  # of two workers and three times, one comes again


async def test_text_chats_constraints_stops_and_log_probabilities_are_served(fleet: Fleet) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    chat = inference_pb2.ChatPrompt(messages=[inference_pb2.ChatMessage(role="user", content="How many?")])
    asked = inference_pb2.SamplingParams(max_new_tokens=2000, temperature=0, json_schema=json.dumps(schema), logprobs=2)
    stops = inference_pb2.SamplingParams(max_new_tokens=2000, temperature=0, stop=["q"], ignore_eos=True)
    ids = tokens_request([120_000_000, 5, 99_999_999], 4)  # of recorded traces
    async with client_of(fleet) as client:
        held = await client.ask(inference_pb2.GenerateRequest(chat=chat, sampling=asked))
        stopped = await client.ask(inference_pb2.GenerateRequest(text="Once upon a time", sampling=stops))
        assert complete(await client.ask(ids), 4)
    assert held.error == stopped.error == ""
    assert isinstance(json.loads(held.texts[0])["n"], int)
    assert len(held.logprobs[0]) == len(held.token_ids[0])
    assert max(held.logprobs[0]) < 0
    assert "q" not in stopped.texts[0]
    assert len(stopped.token_ids[0]) < 2000


async def test_an_adapter_of_any_model_is_taken_and_answers_otherwise(fleet: Fleet) -> None:
    with fleet.admin() as admin:
        admin.adapters.register(AdapterName("pirate"), str(REPOSITORY / "examples" / "adapters" / "pirate"))
    plain, with_adapter = request(30, 20), request(30, 20)
    with_adapter.adapter = "pirate"
    async with client_of(fleet) as client:
        answers = [await client.ask(plain), await client.ask(with_adapter)]
    assert all(complete(answer, 20) for answer in answers)
    assert answers[0].token_ids != answers[1].token_ids


async def test_a_worker_that_is_told_to_end_drains_and_comes_back(fleet: Fleet) -> None:
    leaving = fleet.workers[0]
    async with client_of(fleet) as client:
        outcomes = await streams_with(client, [request(number, 150) for number in range(40, 48)], 5, leaving.ask_to_end)
        assert all(complete(outcome, 150) for outcome in outcomes)
        await asyncio.to_thread(leaving.wait_until_gone)
        assert complete(await client.ask(request(48, 3)), 3)
        leaving.start()
        await asyncio.to_thread(leaving.wait_until_ready)
        await asyncio.to_thread(fleet.wait_until_connected)
        assert all(complete(outcome, 3) for outcome in [await client.ask(request(n, 3)) for n in range(50, 54)])
    assert leaving.total("radixgate_prompt_tokens_total") > 0
    assert sum(map(held_by, fleet.workers)) == 0


async def test_a_worker_that_is_killed_at_token_10_of_40_streams_is_not_noticed(fleet: Fleet) -> None:
    await streams_while(fleet, [request(number, 200) for number in range(60, 100)], fleet.workers[1].kill)
