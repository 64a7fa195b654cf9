"""A stream that one worker began goes on at another one, over real sockets; only the model is a fake."""

import asyncio
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from radixgate.v1 import worker_pb2
from tests.fakes.model import VOCAB_SIZE, Pace, PacedModel
from tests.fakes.worker_stack import Gateway, config, idle, running_worker

PROMPT = list(range(20))
N = 3
SAMPLING: dict[str, Any] = {"max_new_tokens": 40, "n": N, "seed": 11, "logprobs": 1}


@dataclass
class Told:
    """What a gateway has heard of one completion."""

    token_ids: list[int]
    text: str
    logprobs: list[float]
    is_over: bool


def told(news: Iterable[worker_pb2.SequenceOutput], index: int) -> Told:
    own = [output for output in news if output.index == index]
    return Told(
        [token for output in own for token in output.token_ids],
        "".join(output.text for output in own),
        [entry.logprob for output in own for entry in output.logprobs],
        any(output.WhichOneof("end") == "finish_reason" for output in own),
    )


async def all_ended(gateway: Gateway, sequence_id: int, indices: Iterable[int]) -> None:
    expected = set(indices)
    await gateway.until(
        lambda: {output.index for output in gateway.of(sequence_id) if output.WhichOneof("end")} == expected
    )


async def undisturbed() -> list[Told]:
    async with running_worker(config()) as (_, addresses):
        gateway = Gateway(addresses.grpc)
        await gateway.submit(1, PROMPT, **SAMPLING)
        await all_ended(gateway, 1, range(N))
        await gateway.close()
    return [told(gateway.of(1), index) for index in range(N)]


async def test_what_a_worker_had_begun_when_its_stream_broke_goes_on_at_another_one() -> None:
    truth = await undisturbed()
    pace = Pace()
    async with running_worker(config(), PacedModel(pace=pace)) as (_, addresses):
        with pace:
            first = Gateway(addresses.grpc)
            await first.submit(1, PROMPT, **SAMPLING)
            for _ in range(7):
                pace.allow_one()
            await first.until(lambda: len(first.tokens(1)) >= 5 * N)
            await first.close()
    begun = [told(first.of(1), index) for index in range(N)]
    assert all(5 <= len(each.token_ids) < 40 for each in begun)

    async with running_worker(config()) as (app, addresses):
        second = Gateway(addresses.grpc)
        had = {index: each.token_ids for index, each in enumerate(begun)}
        await second.submit(9, PROMPT, continued=had, **SAMPLING)
        await all_ended(second, 9, range(N))
        page = await asyncio.to_thread(_scrape, addresses.metrics)
        await idle(app)
        await second.close()

    for index, each in enumerate(begun):
        rest = told(second.of(9), index)
        assert each.token_ids + rest.token_ids == truth[index].token_ids
        assert each.text + rest.text == truth[index].text
        assert each.logprobs + rest.logprobs == truth[index].logprobs
        assert rest.is_over
    given = sum(len(PROMPT) + len(each.token_ids) for each in begun)
    assert sum(output.admission.prompt_tokens for output in second.of(9)) == given
    assert 'radixgate_continued_sequences_total{adapter="",tenant="acme",worker="worker-0"} 3.0' in page
    assert "radixgate_prompt_tokens_total{" not in page


async def test_completions_that_have_ended_are_not_waited_for() -> None:
    truth = await undisturbed()
    async with running_worker(config()) as (app, addresses):
        gateway = Gateway(addresses.grpc)
        await gateway.submit(1, PROMPT, continued={2: truth[2].token_ids[:9]}, **SAMPLING)
        await all_ended(gateway, 1, [2])
        # The number is free again: the worker waits for none of the others.
        await gateway.submit(1, PROMPT, continued={0: truth[0].token_ids[:39]}, **SAMPLING)
        await all_ended(gateway, 1, [0, 2])
        await idle(app)
        await gateway.close()

    assert told(gateway.of(1), 2).token_ids == truth[2].token_ids[9:]
    assert told(gateway.of(1), 0).token_ids == truth[0].token_ids[39:]


@pytest.mark.parametrize(
    ("continued", "field"),
    [
        ({3: [1]}, "continued[0].index"),
        ({0: [1], 1: []}, "continued[1].token_ids"),
        ({0: [VOCAB_SIZE]}, "continued[0].token_ids"),
        ({0: [1] * 40}, "continued[0].token_ids"),
    ],
    ids=["no such completion", "no token", "no such token", "nothing left"],
)
async def test_what_can_not_go_on_is_refused_by_field_and_the_link_goes_on(
    continued: dict[int, list[int]], field: str
) -> None:
    async with running_worker(config()) as (app, addresses):
        gateway = Gateway(addresses.grpc)
        await gateway.submit(1, PROMPT, continued=continued, **SAMPLING)
        refused = await gateway.end(1)
        await gateway.submit(2, PROMPT)
        served = await gateway.end(2)
        await idle(app)
        await gateway.close()

    assert refused.error.code == worker_pb2.SEQUENCE_ERROR_CODE_INVALID_ARGUMENT
    assert refused.error.field == field
    assert served.WhichOneof("end") == "finish_reason"


async def test_one_that_goes_on_under_a_constraint_that_its_tokens_break_is_refused() -> None:
    async with running_worker(config()) as (_, addresses):
        gateway = Gateway(addresses.grpc)
        await gateway.submit(1, PROMPT, continued={0: [1, 2]}, regex="[0-9]{30}", max_new_tokens=40)
        refused = await gateway.end(1)
        await gateway.close()

    assert refused.error.code == worker_pb2.SEQUENCE_ERROR_CODE_INVALID_ARGUMENT
    assert refused.error.field == "continued[0].token_ids"
    assert "constraint" in refused.error.message


def _scrape(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as response:
        return bytes(response.read()).decode()
