"""Namespaces: public prefixes with tenants below them, and cutting one off while it is in use."""

import pytest

from hicache.cache import PrefixCache
from hicache.keys import PrefixKey, Segment
from tests.unit.hicache.support import drop, key, namespace, serve, start

PUBLIC = list(range(100, 108))


def below(tenant: str, own: list[int], public: list[int] = PUBLIC) -> PrefixKey:
    return PrefixKey((Segment(namespace("public"), public), Segment(namespace(tenant), own)))


def test_a_public_prefix_is_computed_once_for_all_tenants() -> None:
    cache = PrefixCache(64)
    assert serve(cache, below("a", [1, 2, 3]), 1.0) == 0
    assert serve(cache, below("b", [1, 2, 3]), 2.0) == 8
    assert serve(cache, below("a", [1, 2, 3, 4]), 3.0) == 11
    assert cache.num_cached_slots == 8 + 4 + 3
    assert cache.stats().namespaces == 3
    cache.check()


def test_a_prompt_that_ends_at_the_barrier_serves_those_that_go_on() -> None:
    cache = PrefixCache(64)
    serve(cache, key(PUBLIC, "public"), 1.0)
    assert serve(cache, below("a", [1, 2]), 2.0) == 8
    cache.check()


@pytest.mark.parametrize("num_public", [1, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("chunk", [1, 3, 4, 5])
def test_a_key_of_two_segments_can_be_committed_in_any_chunks(num_public: int, chunk: int) -> None:
    cache = PrefixCache(64, page_size=4)
    whole = below("a", list(range(9)), PUBLIC[:num_public])
    with cache.acquire(whole, now=1.0) as lease:
        for end in range(chunk, len(whole) + chunk, chunk):
            length = min(end, len(whole))
            assert lease.reserve(length - lease.num_tokens, now=1.0)
            lease.commit(whole.prefix(length), now=1.0)
            cache.check()
            assert cache.peek(whole).device == length // 4 * 4
    assert cache.peek(whole).device == len(whole) // 4 * 4
    assert cache.peek(key(PUBLIC, "public")).device == num_public // 4 * 4


def test_a_public_prefix_outlives_the_tenants_below_it() -> None:
    cache = PrefixCache(16)
    serve(cache, below("a", [1, 2, 3, 4]), 1.0)
    serve(cache, below("b", [1, 2, 3, 4]), 2.0)
    with cache.acquire(key([1] * 8, "c"), now=3.0) as lease:
        assert lease.reserve(8, now=3.0)
        assert cache.peek(key(PUBLIC, "public")).device == 8
        assert cache.stats().namespaces == 1
        cache.check()
        assert lease.reserve(8, now=3.0)
        assert cache.stats().namespaces == 0
        cache.check()


def test_a_barrier_is_not_merged_away() -> None:
    cache = PrefixCache(64)
    serve(cache, key([*PUBLIC, 1], "public"), 1.0)
    serve(cache, below("a", [1, 2]), 2.0)
    assert cache.stats().nodes == 3
    assert drop(cache, "a") == 2
    assert cache.stats().nodes == 1
    cache.check()


# ------------------------------------------------------------------------------------------------------------ dropping


def test_dropping_a_namespace_frees_it_and_leaves_the_others() -> None:
    cache = PrefixCache(64)
    for name in ("a", "b"):
        serve(cache, key([1, 2, 3], name), 1.0)
        serve(cache, key([1, 2, 4], name), 2.0)
    assert drop(cache, "a") == 4
    assert cache.peek(key([1, 2, 3], "a")).device == 0
    assert cache.peek(key([1, 2, 3], "b")).device == 3
    assert drop(cache, "a") == 0
    cache.check()


def test_what_a_lease_holds_of_a_dropped_namespace_is_out_of_reach_and_comes_back_at_its_end() -> None:
    cache = PrefixCache(64)
    serve(cache, key([1, 2, 3, 9, 9]), 0.0)
    lease = start(cache, key([1, 2, 3, 4]), 1.0)
    other = cache.acquire(key([1, 2, 3]), now=1.0)
    slots = lease.slots.tolist()
    assert drop(cache) == 2
    cache.check()
    assert cache.peek(key([1, 2, 3, 4])).device == 0
    assert cache.num_evictable_slots == 0
    assert lease.slots.tolist() == slots
    lease.release()
    cache.check()
    assert cache.num_free_slots == 61
    other.release()
    cache.check()
    assert cache.num_free_slots == 64
    assert cache.stats().namespaces == 0


@pytest.mark.parametrize("hit", [True, False], ids=["with a hit", "without a hit"])
def test_a_lease_from_before_the_drop_adds_nothing_after_it(hit: bool) -> None:
    cache = PrefixCache(64)
    if hit:
        serve(cache, key([1, 2]), 0.0)
    with cache.acquire(key([1, 2, 3, 4]), now=1.0) as lease:
        assert lease.reserve(4 - lease.num_tokens, now=1.0)
        drop(cache)
        lease.commit(key([1, 2, 3, 4]), now=2.0)
        assert cache.peek(key([1, 2, 3, 4])).device == 0
        assert lease.reserve(3, now=3.0)
        cache.check()
        # A newcomer starts afresh under the same name, side by side with what is left of the old one.
        assert serve(cache, key([1, 2, 3, 4]), 4.0) == 0
        cache.check()
    assert cache.num_free_slots == 60
    assert cache.peek(key([1, 2, 3, 4])).device == 4
    cache.check()


def test_dropping_a_tenant_keeps_the_public_prefix_that_its_lease_reads() -> None:
    cache = PrefixCache(32)
    lease = start(cache, below("a", [1, 2, 3]), 1.0)
    assert drop(cache, "a") == 0
    assert cache.num_evictable_slots == 0
    cache.check()
    with cache.acquire(key([7] * 22, "c"), now=2.0) as greedy:
        assert not greedy.reserve(22, now=2.0)
    lease.release()
    cache.check()
    assert (cache.num_free_slots, cache.num_evictable_slots) == (24, 8)
    assert cache.peek(key(PUBLIC, "public")).device == 8


def test_dropping_a_public_namespace_takes_along_what_hangs_below_it() -> None:
    cache = PrefixCache(64)
    lease = start(cache, below("a", [1, 2, 3]), 1.0)
    serve(cache, below("b", [1, 2, 3]), 2.0)
    serve(cache, key([5, 6], "b"), 3.0)
    assert drop(cache, "public") == 3
    cache.check()
    assert cache.peek(below("b", [1, 2, 3])).device == 0
    assert cache.peek(key([5, 6], "b")).device == 2
    assert cache.stats().namespaces == 1
    # Its own namespace goes as well, with the path above gone already.
    drop(cache, "a")
    cache.check()
    lease.release()
    cache.check()
    assert cache.num_free_slots == 62


def test_a_lease_that_ends_above_a_dropped_part_unlocks_as_ever() -> None:
    cache = PrefixCache(64)
    serve(cache, key(PUBLIC, "public"), 1.0)
    lease = cache.acquire(below("a", [1, 2]), now=2.0)
    drop(cache, "a")
    lease.release()
    cache.check()
    assert cache.num_evictable_slots == 8
