"""What moving a leaf between tiers costs does not grow with the number of leaves. Counts calls, not time."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType

import pytest

from hicache.backing import BackingRules
from hicache.copies.fake_transfer import InstantTransfer
from hicache.host import MirrorRules, WriteBack, WritePolicy, WriteThrough
from hicache.keys import PrefixKey
from hicache.radix.naming import PageNames
from hicache.storage.fake_io import InstantIo
from hicache.storage.memory import MemoryStore
from hicache.tiered import HostTier, StorageTier, TieredCache
from tests.property.tiers import Memories
from tests.unit.hicache.support import key, namespace, serve

FEW, MANY = 1_000, 16_000
PARENT = [7] * 10  # its last page of names goes on in every child


@dataclass
class Calls:
    number: int = 0


def counted(action: Callable[[], object]) -> int:
    """How many functions are called, those written in C included."""
    calls = Calls()

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        calls.number += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls.number


def children(number: int, *, write_policy: WritePolicy | None = None, storage: bool = False) -> TieredCache:
    """A parent with so many children, four tokens each, that all wait for their mirror."""
    num_slots = 4 * number + 64
    rules = MirrorRules(low_watermark=0.0, high_watermark=0.0, max_flying_tokens=10 * num_slots)
    memories = Memories(num_slots, num_slots)
    names = PageNames(4, b"model")
    tier = None
    if storage:
        backing = BackingRules(max_save_tokens=10 * num_slots)
        tier = StorageTier(InstantIo(MemoryStore(1 << 30)), memories, names, backing)
    host = HostTier(num_slots, InstantTransfer(memories.move), write_policy or WriteBack(), rules)
    cache = TieredCache(num_slots, host, storage=tier)
    for child in range(number):
        serve(cache, key([*PARENT, child, 1, 2, 3]), float(child))
    return cache


def take(cache: TieredCache, num_tokens: int) -> None:
    """Make room for so many tokens, and leave it free."""
    with cache.acquire(PrefixKey.of(namespace("other"), [1]), now=1e6) as lease:
        assert lease.reserve(cache.num_free_slots + num_tokens, now=1e6)


def assert_flat(action: Callable[[TieredCache], object], make: Callable[[int], TieredCache]) -> None:
    few, many = (counted(partial(action, make(number))) for number in (FEW, MANY))
    assert many <= 1.3 * few + 50, f"{few} calls with {FEW} leaves, {many} with {MANY}"


def test_demoting_a_child_costs_the_same_beside_any_number_of_others() -> None:
    def make(number: int) -> TieredCache:
        cache = children(number)
        cache.prepare(cache.num_slots, now=1e6)
        return cache

    assert_flat(lambda cache: take(cache, 400), make)


def test_evicting_a_leaf_from_the_host_costs_the_same_among_any_number_of_others() -> None:
    def make(number: int) -> TieredCache:
        cache = children(number)
        cache.prepare(cache.num_slots, now=1e6)
        take(cache, cache.num_evictable_slots)
        return cache

    assert_flat(lambda cache: cache._removal.evict_on_host(400 * 4, cache._shares.common), make)


def test_mirroring_a_leaf_costs_the_same_among_any_number_of_others() -> None:
    assert_flat(lambda cache: cache.prepare(cache.num_free_slots + 400, now=1e6), children)


def test_spare_copies_leave_at_the_same_cost_among_any_number_of_others() -> None:
    def make(number: int) -> TieredCache:
        cache = children(number, write_policy=WriteThrough())
        cache.tick(1e6)
        for child in range(number):
            cache.acquire(key([*PARENT, child, 1, 2, 3]), now=2e6).release()
        return cache

    assert_flat(lambda cache: cache._removal.evict_on_host(400 * 4, cache._shares.common), make)


def test_saving_a_child_costs_the_same_beside_any_number_of_others() -> None:
    assert_flat(
        lambda cache: cache.prepare(cache.num_free_slots + 400, now=1e6),
        lambda number: children(number, storage=True),
    )


@pytest.mark.parametrize("tokens", [200, 400])
def test_all_of_a_prefix_that_is_wanted_is_mirrored_in_one_pass(tokens: int) -> None:
    cache = children(FEW)
    calls = counted(lambda: cache.prepare(cache.num_free_slots + tokens, now=1e6))
    assert cache.tier_stats().mirrored_tokens >= tokens
    assert calls < 100 * tokens
