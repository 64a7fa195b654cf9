"""What every directory of adapters promises, whether an operator has registered what workers have or not."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from gateway.config import RedisConfig
from gateway.control.directory import RegisteredAdapters
from gateway.control.registrations import AdapterKey, Weights
from gateway.control.registry import AdapterRegistry
from gateway.control.shelf import Shelf
from gateway.dispatch.adapters import FleetAdapters, ReportedAdapters
from gateway.errors import UnavailableError
from gateway.identity.adapters import AdapterDirectory
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import connect
from gateway.observer import NullObserver
from radixgate.v1 import worker_pb2

# name, revision, the tenants that may use it
Loaded = tuple[str, str, tuple[str, ...]]


@dataclass
class Holder:
    loaded: Sequence[Loaded] = ()

    @property
    def adapters(self) -> ReportedAdapters:
        return ReportedAdapters(
            worker_pb2.Adapter(name=name, revision=revision, tenants=tenants) for name, revision, tenants in self.loaded
        )


@dataclass
class Fleet:
    """Workers of the model `tiny`, as a directory sees them."""

    connected: list[Holder] = field(default_factory=list)
    away: list[Holder] = field(default_factory=list)

    def up(self, model: str) -> Sequence[Holder]:
        return self.connected if model == "tiny" else []

    def down(self, model: str) -> Sequence[Holder]:
        return self.away if model == "tiny" else []

    def next_attempt_in_s(self) -> float | None:
        return 0.5 if self.away else None


Make = Callable[[Fleet], Awaitable[AdapterDirectory]]


@pytest.fixture(params=["as reported", "registered", "some registered"])
async def make(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Make]:
    client = connect(RedisConfig(url=redis_url))

    async def made(fleet: Fleet) -> AdapterDirectory:
        if request.param == "as reported":
            return FleetAdapters(fleet)
        registry = AdapterRegistry(Shelf(client, StoreReach(client, 2.0, NullObserver()), "adapters"))
        loaded = sorted({each for holder in (*fleet.connected, *fleet.away) for each in holder.loaded})
        for name, revision, tenants in loaded[:: 1 if request.param == "registered" else 2]:
            weights = Weights(revision, f"/{revision}", 1.0)
            await registry.change(
                AdapterKey("tiny", name, frozenset(tenants)),
                lambda before, weights=weights: before.with_weights(weights, 100, 2.0),  # type: ignore[misc]
                2.0,
            )
        return RegisteredAdapters(registry, fleet)

    yield made
    await client.aclose()


FOR_ALL: Loaded = ("poet", "r1", ())
OF_ACME: Loaded = ("secret", "a1", ("acme",))
OF_GLOBEX: Loaded = ("secret", "g1", ("globex",))


async def test_tenants_find_what_is_for_all_and_what_is_their_own(make: Make) -> None:
    directory = await make(Fleet([Holder([FOR_ALL, OF_ACME, OF_GLOBEX])]))
    for tenant_id, revision in (("acme", "a1"), ("globex", "g1")):
        found = await directory.find(tenant_id, "tiny", "secret", "x")
        assert found is not None
        assert (found.name, found.revision) == ("secret", revision)
        assert [each.name for each in await directory.list_of(tenant_id, "tiny")] == ["poet", "secret"]
    assert await directory.find("other", "tiny", "secret", "x") is None
    assert [each.name for each in await directory.list_of("other", "tiny")] == ["poet"]


async def test_what_nobody_has_is_not_found(make: Make) -> None:
    directory = await make(Fleet([Holder([FOR_ALL])]))
    assert await directory.find("acme", "tiny", "bard", "x") is None
    assert await directory.find("acme", "other", "poet", "x") is None
    assert await directory.list_of("acme", "other") == []


async def test_an_adapter_counts_wherever_it_is(make: Make) -> None:
    directory = await make(Fleet([Holder(), Holder([FOR_ALL])]))
    assert await directory.find("acme", "tiny", "poet", "x") is not None


async def test_what_only_workers_have_that_are_away_cannot_be_had_at_the_moment(make: Make) -> None:
    directory = await make(Fleet([Holder()], [Holder([FOR_ALL, OF_ACME])]))
    for name in ("poet", "secret"):
        with pytest.raises(UnavailableError) as caught:
            await directory.find("acme", "tiny", name, "x")
        assert caught.value.retry_after_s == 0.5
    assert await directory.find("globex", "tiny", "secret", "x") is None
    assert await directory.list_of("acme", "tiny") == []


async def test_the_same_affinity_finds_the_same_revision(make: Make) -> None:
    directory = await make(Fleet([Holder([FOR_ALL])]))
    found = {await directory.find("acme", "tiny", "poet", "same") for _ in range(5)}
    assert len(found) == 1
