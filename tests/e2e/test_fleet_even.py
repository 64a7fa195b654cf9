"""Work is even over workers, whatever is asked, and what one gateway knows another one knows. Simulated workers."""

import asyncio
import random
from collections.abc import Iterator, Sequence

import pytest

from benchmarks.fleet_client import FleetClient, tokens_request
from tests.e2e.conversations import Talks, some_tokens
from tests.e2e.fleet import Fleet, FleetPlan, Load, back, client_of, complete, held_by, restarted, running_fleet

pytestmark = [pytest.mark.e2e, pytest.mark.live, pytest.mark.timeout(240)]

NUM_WORKERS = 4
FAIR = 1 / NUM_WORKERS
# Passes that take longer than what this machine does beside them.
SETTINGS = (
    "worker.cache.num_slots=262144",
    "worker.engine.max_running=64",
    "worker.engine.max_step_tokens=4096",
    "worker.engine.max_chunk_tokens=4096",
    "worker.simulation.token_s=0.0002",
    "worker.report_interval_s=0.2",
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("even"), FleetPlan(NUM_WORKERS, 2, SETTINGS)) as running:
        yield running


class Work:
    """What each worker is given from now on, in prompt tokens."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._before = self._now()

    def shares(self) -> tuple[list[float], list[float]]:
        """Return each worker's part of all prompts, and of what had to be computed."""
        asked, computed = (
            [now - then for then, now in zip(*times, strict=True)]
            for times in zip(self._before, self._now(), strict=True)
        )
        return [each / sum(asked) for each in asked], [each / sum(computed) for each in computed]

    def _now(self) -> tuple[list[float], list[float]]:
        names = ("radixgate_prompt_tokens_total", "radixgate_computed_prompt_tokens_total")
        asked, computed = map(self._fleet.worker_totals, names)
        return asked, computed


async def ask_each(client: FleetClient, prompts: Sequence[Sequence[int]], at_a_time: int) -> None:
    """Ask everything once, for one token."""
    places = asyncio.Semaphore(at_a_time)

    async def ask(prompt: Sequence[int]) -> None:
        async with places:
            assert complete(await client.ask(tokens_request(prompt, 1)), 1)

    await asyncio.gather(*map(ask, prompts))


async def test_unrelated_prompts_one_at_a_time_go_to_all_idle_workers(fleet: Fleet) -> None:
    chance, work = random.Random(1), Work(fleet)
    async with client_of(fleet) as client:
        await ask_each(client, [some_tokens(chance, 300) for _ in range(40)], at_a_time=1)
    asked, _ = work.shares()
    assert max(asked) <= 0.4


async def test_load_is_even_whichever_gateway_it_comes_through(fleet: Fleet) -> None:
    samples: list[list[int]] = []
    async with client_of(fleet) as client, Load(client, num_streams=32, num_new=60) as load:
        await load.has_done(32)
        while len(load.outcomes) < 32 * 12:
            samples.append(await asyncio.to_thread(lambda: [held_by(worker) for worker in fleet.workers]))
            await load.has_done(3)
    assert load.failed == []
    means = [sum(column) / len(samples) for column in zip(*samples, strict=True)]
    assert max(means) / (sum(means) / NUM_WORKERS) < 1.2


async def test_a_system_prompt_that_all_share_makes_no_worker_hot(fleet: Fleet) -> None:
    chance, from_the_first = random.Random(2), Work(fleet)
    system = some_tokens(chance, 2000)
    prompts = [[*system, *some_tokens(chance, 200)] for _ in range(400)]
    async with client_of(fleet) as client:
        await ask_each(client, prompts[:160], at_a_time=16)
        once_it_is_everywhere = Work(fleet)
        await ask_each(client, prompts[160:], at_a_time=16)
    asked, _ = from_the_first.shares()
    _, computed = once_it_is_everywhere.shares()
    assert max(asked) <= 0.4
    assert max(computed) / FAIR <= 1.15


async def test_the_gateway_that_is_left_finds_what_the_other_one_had_computed(fleet: Fleet) -> None:
    async with client_of(fleet) as client, Talks(client, num_talks=16) as talks:
        await talks.have_had(96)
        before = await talks.tally_of(320)
        fleet.gateways[1].kill()
        after = await talks.tally_of(320)
    await back(fleet.gateways[1])
    await asyncio.to_thread(fleet.wait_until_connected)
    assert before.errors == []
    assert len(after.errors) <= 16  # whoever was in the middle of an answer asks again
    assert after.hit_rate > before.hit_rate - 0.05
    assert before.hit_rate > 0.95 * before.known_tokens / before.prompt_tokens


async def test_a_slow_worker_gets_no_more_than_its_part_of_what_nobody_has(fleet: Fleet) -> None:
    slow = fleet.workers[3]
    slow.configure(("worker", "simulation", "speed"), 0.25)
    await restarted(slow)
    await asyncio.to_thread(fleet.wait_until_connected)
    chance, work = random.Random(3), Work(fleet)
    async with client_of(fleet) as client:
        await ask_each(client, [some_tokens(chance, 2000) for _ in range(64)], at_a_time=8)
    _, computed = work.shares()
    slow.configure(("worker", "simulation", "speed"), 1.0)
    await restarted(slow)
    await asyncio.to_thread(fleet.wait_until_connected)
    assert computed[3] <= FAIR
