"""Equal tokens of different owners never meet, on any tier, and a dropped owner is gone from all of them."""

from dataclasses import replace

import pytest

from hicache.keys import ExtraKey, Namespace, PrefixKey, Segment
from hicache.pages import group_of
from hicache.storage.memory import MemoryStore
from tests.unit.hicache.support import namespace
from tests.unit.hicache.tiers import SEED, Tiers

SECRET = b"a secret of sixteen bytes and more"
TOKENS = list(range(100, 116))
BASE = ExtraKey(tenant="a", adapter="bc", adapter_revision="1", cache_version=1, scope="s")
OTHERS = {
    "tenant": replace(BASE, tenant="A"),
    "adapter": replace(BASE, adapter="b"),
    "adapter_revision": replace(BASE, adapter_revision="2"),
    "cache_version": replace(BASE, cache_version=2),
    "scope": replace(BASE, scope=""),
    "a letter moved from adapter to tenant": replace(BASE, tenant="ab", adapter="c"),
}
ONE = Namespace(BASE.digest(SECRET), "r1")
PAIRS = {
    **{name: Namespace(other.digest(SECRET), "r1") for name, other in OTHERS.items()},
    "revision applied": replace(ONE, adapter_revision="r2"),
    "base model": replace(ONE, adapter_revision=""),
}


@pytest.fixture(params=list(PAIRS.values()), ids=list(PAIRS))
def other(request: pytest.FixtureRequest) -> PrefixKey:
    assert isinstance(request.param, Namespace)
    return PrefixKey.of(request.param, [*TOKENS, 1])


@pytest.fixture
def one() -> PrefixKey:
    return PrefixKey.of(ONE, [*TOKENS, 1])


def test_nobody_finds_another_s_prefix_on_the_device(one: PrefixKey, other: PrefixKey) -> None:
    tiers = Tiers(64)
    tiers.serve(one)
    assert tiers.cache.peek(other).total == 0
    tiers.serve(other, one)


def test_nobody_finds_another_s_prefix_on_the_host(one: PrefixKey, other: PrefixKey) -> None:
    tiers = Tiers(64)
    tiers.to_host(one)
    assert tiers.cache.peek(other).total == 0
    tiers.to_host(other)
    for wanted in (one, other):
        lease = tiers.start(wanted)
        assert lease.hit.host == 16
        lease.release()


def test_nobody_fetches_another_s_pages_from_storage(one: PrefixKey, other: PrefixKey) -> None:
    store = MemoryStore(1 << 20)
    writer = Tiers(64, store=store)
    writer.to_host(one)
    reader = Tiers(64, store=store)
    fetch = reader.fetch(other)
    reader.settle()
    assert fetch is not None
    assert fetch.fetched_tokens == 0
    assert reader.cache.peek(other).total == 0


def test_pages_and_groups_of_two_owners_have_other_names(one: PrefixKey, other: PrefixKey) -> None:
    store = MemoryStore(1 << 20)
    for wanted in (one, other):
        Tiers(64, store=store).to_host(wanted)
    assert store.stats().num_pages == 8
    assert len({name.page for name in store._pages}) == 8
    assert len({name.group for name in store._pages}) == 2


def test_events_of_two_owners_name_other_pages(one: PrefixKey, other: PrefixKey) -> None:
    tiers = Tiers(64)
    tiers.serve(one, other)
    tiers.mirror_everything()
    events = tiers.log.since(0)
    assert events is not None
    names = {
        owner: {name for event in events if event.namespace == owner for name in event.names}
        for owner in (one.namespaces[0], other.namespaces[0])
    }
    first, second = names.values()
    assert len(first) == len(second) == 4
    assert not first & second


def test_caches_of_different_models_share_nothing_in_one_store(one: PrefixKey) -> None:
    store = MemoryStore(1 << 20)
    Tiers(64, store=store).to_host(one)
    stranger = Tiers(64, store=store, seed=b"another model")
    fetch = stranger.fetch(one)
    stranger.settle()
    assert fetch is not None
    assert fetch.fetched_tokens == 0
    stranger.to_host(one)
    assert store.stats().num_pages == 8


def test_who_drops_a_namespace_of_one_model_leaves_the_other_model_s_pages(one: PrefixKey) -> None:
    store = MemoryStore(1 << 20)
    Tiers(64, store=store).to_host(one)
    stranger = Tiers(64, store=store, seed=b"another model")
    stranger.to_host(one)
    stranger.cache.drop(ONE)
    stranger.settle()
    assert {name.group for name in store._pages} == {group_of(ONE, SEED)}


def test_a_dropped_namespace_is_gone_from_all_tiers(one: PrefixKey, other: PrefixKey) -> None:
    tiers = Tiers(64)
    tiers.to_host(one, other)
    tiers.serve(one, other)
    tiers.cache.drop(ONE)
    assert tiers.cache.peek(one).total == 0
    assert tiers.cache.peek(other).total == 17
    tiers.settle()
    holdings = tiers.cache.holdings(ONE)
    assert (holdings.device, holdings.host) == (0, 0)
    assert {name.group for name in tiers.store._pages} == {group_of(other.namespaces[0], SEED)}


def test_a_public_prefix_is_shared_on_every_tier_and_what_follows_is_not() -> None:
    public = Segment(namespace("public"), TOKENS[:8])
    first, second = (PrefixKey((public, Segment(namespace(name), TOKENS[8:]))) for name in ("a", "b"))
    store = MemoryStore(1 << 20)
    tiers = Tiers(64, store=store)
    tiers.to_host(first)
    assert tiers.cache.peek(second).host == 8
    reader = Tiers(64, store=store)
    fetch = reader.fetch(second)
    reader.settle()
    assert fetch is not None
    assert fetch.fetched_tokens == 8
    reader.serve(second)
