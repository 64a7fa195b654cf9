"""Workers and gateways die, hang and are upgraded, and clients notice nothing. Simulated workers, all else real."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.e2e.fleet import (
    AT_TOKEN,
    Fleet,
    FleetPlan,
    Load,
    assert_as_undisturbed,
    back,
    client_of,
    complete,
    drained_with_streams,
    held_by,
    request,
    restarted,
    running_fleet,
    streams_while,
    streams_with,
    undisturbed,
)
from tests.processes import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.live, pytest.mark.timeout(240)]

NUM_STREAMS = 40
NUM_NEW = 80
SILENCE_S = 2.0
SETTINGS = (
    "worker.cache.num_slots=262144",
    "worker.engine.max_running=64",
    "worker.simulation.step_s=0.03",  # so that streams last while something is done to them
    "worker.report_interval_s=0.2",
    "worker.drain_s=60",
    f"gateway.worker_link.silence_s={SILENCE_S}",
    "gateway.failover.wait_for_worker_s=60",
)
REQUESTS = [request(number, NUM_NEW) for number in range(NUM_STREAMS)]
WITH_MORE = [request(number, NUM_NEW) for number in range(100, 108)]
for _each in WITH_MORE:
    _each.sampling.n = 2
    _each.sampling.logprobs = 1


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Each test leaves all members running and at rest."""
    with running_fleet(tmp_path_factory.mktemp("failover"), FleetPlan(2, 2, SETTINGS)) as running:
        yield running


@pytest.fixture
def whole(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet before and after a test: all run, are connected and hold nothing."""
    yield fleet
    for member in (*fleet.workers, *fleet.gateways):
        if not member.runs:
            member.start()
            member.wait_until_ready()
    fleet.wait_until_connected()
    wait_until(lambda: sum(map(held_by, fleet.workers)) == 0, timeout_s=30, what="workers at rest")


async def test_completions_and_log_probabilities_survive_a_killed_worker(whole: Fleet) -> None:
    await streams_while(whole, WITH_MORE, whole.workers[1].kill)


async def test_a_worker_that_hangs_is_left_within_the_time_of_its_silence(whole: Fleet) -> None:
    try:
        await streams_while(whole, REQUESTS, whole.workers[0].freeze)
    finally:
        whole.workers[0].thaw()


async def test_a_worker_that_is_killed_while_it_reads_prompts_is_not_noticed(whole: Fleet) -> None:
    long = [request(number, 5, num_tokens=8000) for number in range(200, 212)]
    reference = await undisturbed(whole, long)
    async with client_of(whole) as client:
        asking = asyncio.create_task(client.ask_all(long))
        async with asyncio.timeout(30):
            await asyncio.to_thread(wait_until, lambda: held_by(whole.workers[0]) > 0, what="a worker has requests")
        whole.workers[0].kill()
        assert_as_undisturbed(await asking, reference)


async def test_usage_that_is_accounted_to_a_tenant_counts_each_token_once(whole: Fleet) -> None:
    with whole.admin() as admin:
        admin.ensure_tenant("accounted")
    async with client_of(whole, "accounted") as client:
        outcomes = await streams_with(client, REQUESTS, AT_TOKEN, whole.workers[0].kill)
    assert all(complete(outcome, NUM_NEW) for outcome in outcomes)
    told = sum(outcome.usage.completion_tokens for outcome in outcomes if outcome.usage)

    def accounted() -> int:
        with whole.admin() as admin:
            return admin.usage("accounted").total.completion_tokens

    wait_until(lambda: accounted() >= told, timeout_s=30, what="usage written")
    assert accounted() == told == NUM_STREAMS * NUM_NEW


async def test_a_rolling_restart_of_all_workers_and_gateways_fails_no_call(whole: Fleet) -> None:
    async with client_of(whole) as client, Load(client, num_streams=12, num_new=60) as load:
        await load.has_done(12)
        for worker in whole.workers:
            await restarted(worker)
            await asyncio.to_thread(whole.wait_until_connected)
            await load.has_done(12)
        for gateway in whole.gateways:
            await drained_with_streams(gateway)
            await load.has_done(12)  # by the other one alone
            await back(gateway)
            await asyncio.to_thread(whole.wait_until_connected)
            await load.has_done(24)
    assert load.failed == []


async def test_new_calls_do_not_notice_that_one_of_two_gateways_is_killed(whole: Fleet) -> None:
    async with client_of(whole) as client:
        assert complete(await client.ask(request(500, 5)), 5)
        whole.gateways[1].kill()
        outcomes = await client.ask_all([request(number, 5) for number in range(500, 540)])
    assert [outcome for outcome in outcomes if not complete(outcome, 5)] == []
