"""Dropping a namespace: out of reach at once, whatever its size; its slots come back bit by bit, or when needed."""

import sys
from types import FrameType
from typing import Any

import pytest

from hicache.cache import Holdings, PrefixCache
from hicache.keys import PrefixKey, Segment
from hicache.radix.naming import PageNames
from tests.unit.hicache.support import Diary, drop, key, namespace, serve, settle, start

PUBLIC = list(range(100, 108))
NEVER = 10**9


def below(tenant: str, own: list[int]) -> PrefixKey:
    return PrefixKey((Segment(namespace("public"), PUBLIC), Segment(namespace(tenant), own)))


def fill(cache: PrefixCache, name: str, num_leaves: int) -> None:
    """Store prompts of two tokens that have nothing in common."""
    for number in range(num_leaves):
        serve(cache, key([number, 0], name), 1.0)


def reap(cache: PrefixCache, num_nodes: int) -> None:
    cache._slots.free_packed(cache._removal.reap(num_nodes))


# -------------------------------------------------------------------------------------------------------- what it costs


def calls_of_a_drop(num_leaves: int) -> int:
    cache = PrefixCache(2 * num_leaves)
    fill(cache, "tenant", num_leaves)
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        cache.drop(namespace())
    finally:
        sys.setprofile(None)
    return count


def test_a_drop_does_as_much_for_a_large_namespace_as_for_a_small_one() -> None:
    assert calls_of_a_drop(3000) == calls_of_a_drop(3)


def test_a_tick_frees_a_bounded_part_of_what_was_dropped() -> None:
    cache = PrefixCache(6000)
    fill(cache, "tenant", 3000)
    cache.drop(namespace())
    freed = []
    while cache.num_free_slots < 6000:
        before = cache.num_free_slots
        cache.tick(2.0)
        freed.append(cache.num_free_slots - before)
        cache.check()
    assert min(freed) > 0
    assert max(freed) <= 2 * 256


# ------------------------------------------------------------------------------------------------------ slots come back


def test_what_was_dropped_is_out_of_reach_before_any_of_it_is_freed() -> None:
    cache = PrefixCache(16)
    serve(cache, key([1, 2, 3]), 1.0)
    serve(cache, key([1, 2, 4]), 2.0)
    cache.drop(namespace())
    assert cache.peek(key([1, 2, 3])).total == 0
    assert cache.holdings(namespace()) == Holdings(0, 0)
    assert (cache.stats().namespaces, cache.num_free_slots) == (0, 12)
    cache.check()
    settle(cache)
    assert (cache.stats().nodes, cache.num_free_slots) == (0, 16)
    cache.check()


def test_dropped_slots_count_as_available() -> None:
    cache = PrefixCache(16)
    serve(cache, key(list(range(10))), 1.0)
    cache.drop(namespace())
    assert (cache.num_free_slots, cache.num_evictable_slots, cache.num_available_slots()) == (6, 10, 16)


@pytest.mark.parametrize("needed", [1, 4, 8])
def test_an_allocation_takes_what_was_dropped_before_it_evicts_anything(needed: int) -> None:
    cache = PrefixCache(16)
    serve(cache, key([1, 2, 3, 4], "cold"), 1.0)
    serve(cache, key([1, 2, 3, 4], "kept"), 2.0)
    serve(cache, key([1, 2, 3, 4, 5, 6, 7, 8], "gone"), 3.0)
    cache.drop(namespace("gone"))
    with cache.acquire(key([9] * 8, "new"), now=4.0) as lease:
        assert lease.reserve(needed, now=4.0)
        assert cache.stats().evicted_tokens == 0
        assert cache.peek(key([1, 2, 3, 4], "cold")).device == 4
        cache.check()


def test_an_allocation_beyond_what_was_dropped_evicts_the_rest() -> None:
    cache = PrefixCache(12)
    serve(cache, key([1, 2, 3, 4], "cold"), 1.0)
    serve(cache, key([1, 2, 3, 4], "gone"), 2.0)
    serve(cache, key([1, 2, 3, 4], "kept"), 3.0)
    cache.drop(namespace("gone"))
    with cache.acquire(key([9] * 6, "new"), now=4.0) as lease:
        assert lease.reserve(6, now=4.0)
        assert cache.stats().evicted_tokens == 2
        assert cache.peek(key([1, 2, 3, 4], "kept")).device == 4
        cache.check()


def test_what_was_dropped_before_does_not_delay_what_is_dropped_later() -> None:
    cache = PrefixCache(64)
    for name in ("a", "b", "c"):
        serve(cache, key([1, 2, 3], name), 1.0)
        cache.drop(namespace(name))
    assert not any(cache.peek(key([1, 2, 3], name)).total for name in "abc")
    cache.check()
    settle(cache)
    assert cache.num_free_slots == 64


# --------------------------------------------------------------------------------------------------- dropped while read


@pytest.mark.parametrize("reaped", range(6))
def test_what_leases_read_comes_back_at_their_ends_however_much_is_reaped_by_then(reaped: int) -> None:
    cache = PrefixCache(64)
    stem = list(range(8))
    serve(cache, key([*stem, 20, 21]), 1.0)
    longer, shorter = start(cache, key([*stem, 30, 31]), 2.0), cache.acquire(key(stem), now=2.0)
    slots = longer.slots.tolist()
    cache.drop(namespace())
    reap(cache, reaped)
    cache.check()
    longer.release()
    cache.check()
    assert shorter.slots.tolist() == slots[:8]
    assert cache.num_free_slots <= 64 - 8
    reap(cache, 1)
    cache.check()
    shorter.release()
    cache.check()
    settle(cache)
    cache.check()
    assert (cache.num_free_slots, cache.stats().locked_slots) == (64, 0)


def test_what_a_lease_reads_of_a_dropped_namespace_is_given_to_nobody() -> None:
    cache = PrefixCache(8)
    with start(cache, key([1, 2, 3, 4]), 1.0):
        cache.drop(namespace())
        assert cache.num_available_slots() == 4
        with cache.acquire(key([7] * 8, "other"), now=2.0) as other:
            assert not other.reserve(5, now=2.0)
            assert other.reserve(4, now=2.0)
            cache.check()
    settle(cache)
    assert cache.num_free_slots == 8


@pytest.mark.parametrize("reaped", [0, 1, 2, NEVER])
def test_a_lease_from_before_a_drop_adds_nothing_to_what_comes_after_it(reaped: int) -> None:
    cache = PrefixCache(64)
    serve(cache, key([1, 2]), 0.0)
    with cache.acquire(key([1, 2, 3, 4]), now=1.0) as lease:
        assert lease.reserve(2, now=1.0)
        cache.drop(namespace())
        reap(cache, min(reaped, 100))
        assert serve(cache, key([1, 2, 5]), 2.0) == 0
        cache.check()
        lease.commit(key([1, 2, 3, 4]), now=3.0)
        assert cache.peek(key([1, 2, 3, 4])).device == 2
        cache.check()
    assert serve(cache, key([1, 2, 3]), 4.0) == 2
    cache.check()


# ----------------------------------------------------------------------------------------- public prefixes and barriers


@pytest.mark.parametrize("order", [("a", "public"), ("public", "a"), ("a", "b", "public", "a"), ("public", "public")])
@pytest.mark.parametrize("reaped", range(7))
def test_nested_namespaces_can_be_dropped_in_any_order_with_any_part_reaped_between(
    order: tuple[str, ...], reaped: int
) -> None:
    cache = PrefixCache(64)
    held = start(cache, below("a", [1, 2, 3]), 1.0)
    serve(cache, below("a", [1, 2, 4]), 2.0)
    serve(cache, below("b", [1, 2, 3]), 3.0)
    serve(cache, key([5, 6], "b"), 4.0)
    for name in order:
        cache.drop(namespace(name))
        cache.check()
        reap(cache, reaped)
        cache.check()
    assert not cache.peek(below("a", [1, 2, 3])).total
    held.release()
    cache.check()
    settle(cache)
    cache.check()
    assert cache.peek(key([5, 6], "b")).device == (0 if "b" in order else 2)
    assert cache.num_cached_slots == (0 if "b" in order else 2)


def test_a_barrier_below_which_something_was_dropped_is_merged_once_that_is_freed() -> None:
    cache = PrefixCache(64)
    serve(cache, key([*PUBLIC, 1], "public"), 1.0)
    serve(cache, below("a", [1, 2]), 2.0)
    cache.drop(namespace("a"))
    assert cache.stats().nodes == 3
    cache.check()
    cache.tick(3.0)
    assert cache.stats().nodes == 1
    cache.check()


def test_a_barrier_is_extended_beside_what_was_dropped_below_it() -> None:
    cache = PrefixCache(64)
    serve(cache, below("a", [1, 2]), 1.0)
    cache.drop(namespace("a"))
    assert serve(cache, key([*PUBLIC, 1, 2], "public"), 2.0) == 8
    cache.check()
    settle(cache)
    cache.check()
    assert (cache.stats().nodes, cache.peek(key([*PUBLIC, 1, 2], "public")).device) == (1, 10)


def test_a_public_prefix_can_be_dropped_again_under_what_a_lease_still_holds_of_the_first() -> None:
    cache = PrefixCache(64)
    leases = []
    for round_number in range(3):
        leases.append(start(cache, below("a", [1, 2, 3]), float(round_number)))
        assert leases[-1].hit.total == 0
        cache.drop(namespace("public"))
        reap(cache, round_number)
        cache.check()
    for lease in leases:
        lease.release()
        cache.check()
    settle(cache)
    assert cache.num_free_slots == 64


# ------------------------------------------------------------------------------------------------- names that come back


@pytest.mark.parametrize("reaped", range(4))
def test_a_namespace_lives_again_beside_what_is_not_freed_of_the_old_one(reaped: int) -> None:
    cache = PrefixCache(64)
    serve(cache, key([1, 2, 3]), 1.0)
    serve(cache, key([1, 2, 4]), 1.0)
    cache.drop(namespace())
    reap(cache, reaped)
    assert serve(cache, key([1, 2, 3]), 2.0) == 0
    assert serve(cache, key([1, 2, 3, 4]), 2.0) == 3
    cache.check()
    assert cache.holdings(namespace()) == Holdings(4, 0)
    settle(cache)
    cache.check()
    assert cache.peek(key([1, 2, 3, 4])).device == 4
    assert drop(cache) == 4
    assert cache.num_free_slots == 64


@pytest.mark.parametrize("reaped", range(4))
def test_dropping_a_new_namespace_leaves_nothing_of_the_old_one_either(reaped: int) -> None:
    cache = PrefixCache(64)
    for now in (1.0, 2.0, 3.0):
        assert serve(cache, below("a", [1, 2, 3]), now) == (0 if now == 1.0 else 8)
        cache.drop(namespace("a"))
        reap(cache, reaped)
        cache.check()
    settle(cache)
    cache.check()
    assert (cache.num_cached_slots, cache.stats().namespaces) == (8, 1)


def test_dropping_what_was_never_there_does_nothing() -> None:
    cache = PrefixCache(8)
    serve(cache, key([1, 2]), 1.0)
    before = cache.stats()
    cache.drop(namespace("nobody"))
    assert cache.stats() == before
    cache.check()


# ----------------------------------------------------------------------------------------------------- who is told what


@pytest.mark.parametrize("order", [("a", "public"), ("public", "a"), ("public",)])
@pytest.mark.parametrize("reaped", range(6))
def test_everything_dropped_is_reported_gone_by_the_name_it_came_with(order: tuple[str, ...], reaped: int) -> None:
    diary = Diary(PageNames(2, b"seed"))
    cache = PrefixCache(64, names=diary.names, watcher=diary)
    serve(cache, below("a", [1, 2, 3, 4]), 1.0)
    serve(cache, below("a", [1, 2, 5, 6]), 2.0)
    held = start(cache, below("a", [1, 2, 3, 4, 7, 8]), 3.0)
    for name in order:
        cache.drop(namespace(name))
        reap(cache, reaped)
        serve(cache, key([*PUBLIC, 9, 9], "other"), 4.0)
    held.release()
    settle(cache)
    cache.check()
    assert len(diary.held) == 5
    drop(cache, "other")
    assert not diary.held
