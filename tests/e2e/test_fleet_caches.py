"""What workers hold is found, on the host too, and what gateways expect of it is what comes. Simulated workers."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from cli.admin_client.adapter_calls import AdapterName
from tests.e2e.conversations import Conversation, Tally, in_rounds, some_tokens
from tests.e2e.fleet import Fleet, FleetPlan, client_of, running_fleet
from tests.tools import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.live, pytest.mark.timeout(240)]

NUM_WORKERS = 3
DEVICE_SLOTS = 32_768
ADAPTERS = ("pirate", "tagger")
SETTINGS = (
    f"worker.cache.num_slots={DEVICE_SLOTS}",
    f"worker.cache.host_slots={3 * DEVICE_SLOTS}",
    # Copies to the host begin early: how fast they are is looked at elsewhere.
    "worker.cache.low_watermark=0.25",
    "worker.cache.high_watermark=0.5",
    "worker.engine.max_running=32",
    "worker.engine.max_step_tokens=2048",
    "worker.engine.max_chunk_tokens=2048",
    "worker.report_interval_s=0.2",
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("caches"), FleetPlan(NUM_WORKERS, 2, SETTINGS)) as running:
        yield running


async def test_conversations_stay_with_the_worker_that_has_them_on_its_host(fleet: Fleet) -> None:
    """All of them together are twice what the workers' devices hold."""
    chance = random.Random(4)
    conversations = [Conversation(f"host {number}", question_tokens=800) for number in range(60)]
    async with client_of(fleet) as client:
        tally = await in_rounds(client, conversations, num_turns=4, at_a_time=6, chance=chance)
    working_set = sum(len(conversation.said) for conversation in conversations)
    assert tally.errors == []
    assert working_set > 1.9 * NUM_WORKERS * DEVICE_SLOTS
    assert sum(fleet.worker_totals("radixgate_cached_tokens_total", tier="host")) > 0.2 * tally.cached_tokens
    assert tally.cached_tokens > 0.95 * tally.known_tokens


class Predictions:
    """How often gateways were right from now on about what would be cached."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._before = self._now()

    def counts(self) -> dict[str, float]:
        return {outcome: value - self._before[outcome] for outcome, value in self._now().items()}

    def _now(self) -> dict[str, float]:
        name = "radixgate_gateway_predictions_total"
        return {
            outcome: sum(gateway.total(name, outcome=outcome) for gateway in self._fleet.gateways)
            for outcome in ("right", "over", "under")
        }


def talk_of(tenant: str, number: int) -> list[Conversation]:
    """Return conversations of a tenant: behind one beginning, with every adapter and without, in every scope."""
    beginning = some_tokens(random.Random(tenant), 500)
    return [
        Conversation(f"{tenant} {number} {adapter} {scope}", beginning, 150, adapter=adapter, scope=scope)
        for adapter in ("", *ADAPTERS)
        for scope in ("", "one", "two")
    ]


async def test_nearly_all_hits_are_those_that_gateways_expected(fleet: Fleet) -> None:
    with fleet.admin() as admin:
        for name in ADAPTERS:
            admin.adapters.register(AdapterName(name), str(REPOSITORY / "examples" / "adapters" / name))

    async def talk(tenant: str, number: int) -> Tally:
        async with client_of(fleet, tenant) as client:
            return await in_rounds(client, talk_of(tenant, number), num_turns=6, at_a_time=3, chance=random.Random(5))

    tenants = ("acme", "globex", "initech")
    await asyncio.gather(*(talk(tenant, 0) for tenant in tenants))
    evicted = sum(fleet.worker_totals("radixgate_evicted_tokens_total"))
    predictions = Predictions(fleet)
    tallies = await asyncio.gather(*(talk(tenant, number) for tenant in tenants for number in (1, 2)))
    counts = predictions.counts()
    assert [tally.errors for tally in tallies] == [[]] * 6
    assert sum(counts.values()) == 6 * 9 * 6
    assert counts["right"] >= 0.98 * sum(counts.values())
    assert sum(tally.cached_tokens for tally in tallies) > 0.5 * sum(tally.prompt_tokens for tally in tallies)
    assert sum(fleet.worker_totals("radixgate_evicted_tokens_total")) > evicted
