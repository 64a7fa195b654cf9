"""Leases and the tree below them: what is shared, what is private, what a node may turn into."""

import tracemalloc

import numpy as np
import pytest

from hicache.cache import Hit, PrefixCache
from hicache.errors import LeaseError
from hicache.radix.policy import RankedQueue, by_name
from tests.unit.hicache.support import key, namespace, serve, start

LENGTHS_AROUND_A_PAGE = [1, 15, 16, 17, 31, 32, 33]


# ------------------------------------------------------------------------------------------------------ room and pages


@pytest.mark.parametrize("length", LENGTHS_AROUND_A_PAGE)
def test_whole_pages_are_cached_and_the_tail_comes_back(length: int) -> None:
    cache = PrefixCache(64, page_size=16)
    prompt = key(list(range(length)))
    with start(cache, prompt, 1.0) as lease:
        assert (lease.slots % 16).tolist() == [position % 16 for position in range(length)]
        assert lease.num_tokens == length
        cache.check()
    assert cache.num_cached_slots == length // 16 * 16
    assert cache.peek(prompt) == Hit(length // 16 * 16)
    cache.check()


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("length", [*LENGTHS_AROUND_A_PAGE, 48, 100])
@pytest.mark.parametrize("shared", LENGTHS_AROUND_A_PAGE)
def test_a_hit_is_the_shared_whole_pages(page_size: int, length: int, shared: int) -> None:
    cache = PrefixCache(256, page_size=page_size)
    first = list(range(length))
    second = [*first[:shared], *range(1000, 1040)]
    serve(cache, key(first), 1.0)
    assert serve(cache, key(second), 2.0) == min(length, shared) // page_size * page_size
    cache.check()


@pytest.mark.parametrize("max_tokens", [-1, 0, 1, 15, 16, 17, 32, 100])
def test_a_hit_stays_within_max_tokens(max_tokens: int) -> None:
    cache = PrefixCache(64, page_size=16)
    prompt = key(list(range(40)))
    serve(cache, prompt, 1.0)
    expected = Hit(min(max(max_tokens, 0), 40) // 16 * 16)
    assert cache.peek(prompt, max_tokens=max_tokens) == expected
    with cache.acquire(prompt, now=2.0, max_tokens=max_tokens) as lease:
        assert lease.hit == expected
        assert len(lease.slots) == expected.total
    cache.check()


def test_a_page_is_filled_before_another_is_taken() -> None:
    cache = PrefixCache(32, page_size=16)
    with cache.acquire(key([1]), now=1.0) as lease:
        assert all(lease.reserve(1, now=1.0) for _ in range(16))
        assert cache.num_free_slots == 16
        assert lease.reserve(1, now=1.0)
        assert cache.num_free_slots == 0
        assert lease.slots.tolist()[:16] == list(range(int(lease.slots[0]), int(lease.slots[0]) + 16))


def test_a_reservation_that_does_not_fit_changes_nothing() -> None:
    cache = PrefixCache(10)
    serve(cache, key([1, 2, 3]), 1.0)
    with cache.acquire(key([7, 8]), now=2.0) as lease:
        assert lease.reserve(2, now=2.0)
        before = cache.stats(), lease.slots.tolist()
        assert not lease.reserve(9, now=2.0)
        assert (cache.stats(), lease.slots.tolist()) == before
        assert cache.peek(key([1, 2, 3])).device == 3
        assert lease.reserve(8, now=2.0)
        assert cache.stats().evicted_tokens == 3
        cache.check()


def test_what_a_lease_reserved_and_never_committed_comes_back() -> None:
    cache = PrefixCache(32, page_size=4)
    lease = cache.acquire(key([1, 2]), now=1.0)
    assert lease.reserve(9, now=1.0)
    assert cache.stats().private_slots == 12
    lease.release()
    lease.release()
    assert cache.num_free_slots == 32
    cache.check()


def test_slots_handed_out_before_stay_what_they_were() -> None:
    cache = PrefixCache(1000)
    with cache.acquire(key([1]), now=1.0) as lease:
        assert lease.reserve(10, now=1.0)
        early = lease.slots
        before = early.tolist()
        assert lease.reserve(500, now=1.0)
        assert early.tolist() == before == lease.slots[:10].tolist()
        with pytest.raises(ValueError, match="read-only"):
            lease.slots[0] = 3


def test_a_released_lease_is_of_no_more_use() -> None:
    cache = PrefixCache(8)
    lease = start(cache, key([1, 2]), 1.0)
    lease.release()
    assert lease.num_tokens == 0
    with pytest.raises(LeaseError, match="released"):
        lease.reserve(1, now=2.0)
    with pytest.raises(LeaseError, match="released"):
        lease.commit(key([1, 2]), now=2.0)


def test_a_commit_needs_slots_and_its_own_namespaces() -> None:
    cache = PrefixCache(8)
    with cache.acquire(key([1, 2]), now=1.0) as lease:
        assert lease.reserve(1, now=1.0)
        with pytest.raises(LeaseError, match="slots for 1"):
            lease.commit(key([1, 2]), now=1.0)
        with pytest.raises(LeaseError, match="namespaces"):
            lease.commit(key([1], "other"), now=1.0)
        with pytest.raises(LeaseError, match="negative"):
            lease.reserve(-1, now=1.0)


def test_an_earlier_prefix_committed_again_changes_nothing() -> None:
    cache = PrefixCache(8)
    with start(cache, key([1, 2, 3]), 1.0) as lease:
        before = cache.stats()
        lease.commit(key([1, 2]), now=2.0)
        lease.commit(key([1, 2, 3]), now=2.0)
        assert cache.stats() == before


def test_peek_changes_nothing() -> None:
    cache = PrefixCache(16)
    serve(cache, key([1, 2, 3, 4]), 1.0)
    serve(cache, key([5, 6]), 2.0)
    before = cache.stats()
    assert cache.peek(key([1, 2, 9])) == Hit(2)
    assert cache.stats() == before
    # Looking was no use of it either: it is still the coldest.
    with cache.acquire(key([8] * 11), now=3.0) as lease:
        assert lease.reserve(11, now=3.0)
    assert (cache.peek(key([1, 2, 3, 4])).device, cache.peek(key([5, 6])).device) == (3, 2)


# ----------------------------------------------------------------------------------------- leases that compute the same


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("other_length", [1, 3, 4, 5, 8, 11, 12, 13, 16, 20])
@pytest.mark.parametrize("diverges", [False, True], ids=["same", "diverging"])
def test_whoever_commits_second_keeps_its_own_slots_until_release(
    page_size: int, other_length: int, diverges: bool
) -> None:
    cache = PrefixCache(128, page_size=page_size)
    mine = list(range(12))
    theirs = ([*range(7), *range(100, 113)] if diverges else list(range(20)))[:other_length]
    shared = sum(1 for one, other in zip(mine, theirs, strict=False) if one == other) // page_size * page_size
    first = cache.acquire(key(theirs), now=1.0)
    second = cache.acquire(key(mine), now=1.0)
    assert first.reserve(len(theirs), now=1.0)
    assert second.reserve(12, now=1.0)
    own_slots = second.slots.tolist()
    first.commit(key(theirs), now=2.0)
    second.commit(key(mine), now=3.0)
    cache.check()
    assert second.slots.tolist() == own_slots
    with cache.acquire(key(mine), now=4.0) as third:
        assert third.hit.device == 12
        assert third.slots[:shared].tolist() == first.slots[:shared].tolist()
        assert third.slots[shared:].tolist() == own_slots[shared:]
    first.release()
    cache.check()
    second.release()
    cache.check()
    distinct = len(theirs) // page_size * page_size + 12 - shared
    assert (cache.num_cached_slots, cache.num_free_slots) == (distinct, 128 - distinct)


def test_two_leases_that_advance_in_turns_stay_right() -> None:
    cache = PrefixCache(256, page_size=4)
    tokens = list(range(60))
    fast, slow = (cache.acquire(key(tokens), now=1.0) for _ in range(2))
    for step in range(1, 16):
        for lease, length in ((fast, step * 4), (slow, step * 4 - 2)):
            assert lease.reserve(length - lease.num_tokens, now=1.0)
            lease.commit(key(tokens[:length]), now=1.0)
            cache.check()
    assert cache.num_cached_slots == 60
    fast.release()
    slow.release()
    assert cache.stats().nodes == 1
    assert cache.num_free_slots == 256 - 60


def test_a_held_node_may_be_split_by_others() -> None:
    cache = PrefixCache(64)
    tokens = list(range(20))
    with start(cache, key(tokens), 1.0) as lease, start(cache, key([*tokens[:8], 99]), 2.0) as other:
        assert other.hit.device == 8
        cache.check()
        assert lease.reserve(5, now=3.0)
        lease.commit(key([*tokens, 1, 2, 3, 4, 5]), now=3.0)
        cache.check()
        assert cache.peek(key([*tokens, 1, 2, 3, 4, 5])).device == 25
    cache.check()


def test_a_leaf_in_which_another_lease_ends_is_not_extended() -> None:
    cache = PrefixCache(64)
    tokens = list(range(10))
    serve(cache, key(tokens), 1.0)
    with cache.acquire(key(tokens), now=2.0) as one, cache.acquire(key(tokens), now=2.0) as other:
        assert one.reserve(3, now=3.0)
        one.commit(key([*tokens, 50, 51, 52]), now=3.0)
        cache.check()
        assert cache.stats().nodes == 2
        assert other.reserve(2, now=4.0)
        other.commit(key([*tokens, 60, 61]), now=4.0)
        cache.check()
    assert (cache.stats().nodes, cache.stats().leaves) == (3, 2)


# -------------------------------------------------------------------------------------------------- shape of the tree


def test_a_conversation_stays_one_node_whatever_its_turns() -> None:
    cache = PrefixCache(4096)
    tokens: list[int] = []
    for turn in range(50):
        tokens += [turn] * 10
        assert serve(cache, key(tokens), float(turn)) == max(0, len(tokens) - 10)
        cache.check()
    assert cache.stats().nodes == 1


def test_partial_matches_leave_no_nodes_behind() -> None:
    cache = PrefixCache(4096)
    tokens = list(range(400))
    serve(cache, key(tokens), 0.0)
    for length in range(1, 200):
        with cache.acquire(key(tokens[: 2 * length]), now=float(length)) as lease:
            assert lease.hit.device == 2 * length
    assert cache.stats().nodes == 1
    cache.check()


def test_the_last_remaining_branch_is_merged_back() -> None:
    cache = PrefixCache(20)
    serve(cache, key([1, 2, 3, 4, 5, 6]), 1.0)
    serve(cache, key([1, 2, 3, 7, 8, 9]), 2.0)
    with cache.acquire(key([5] * 14), now=3.0) as lease:
        assert lease.reserve(14, now=3.0)
        assert cache.stats().nodes == 1
        assert cache.peek(key([1, 2, 3, 7, 8, 9])).device == 6
        cache.check()


def test_a_merge_waits_for_the_lease_that_ends_in_the_upper_node() -> None:
    cache = PrefixCache(20)
    serve(cache, key([1, 2, 3, 4, 5, 6]), 1.0)
    with cache.acquire(key([1, 2, 3]), now=2.0):
        assert cache.stats().nodes == 2
        with cache.acquire(key([1, 2, 3, 4, 5, 6]), now=3.0):
            pass
        assert cache.stats().nodes == 2
        cache.check()
    assert cache.stats().nodes == 1
    cache.check()


def test_a_leaf_is_trimmed_to_what_is_needed() -> None:
    cache = PrefixCache(64, page_size=4)
    serve(cache, key(list(range(64))), 1.0)
    with cache.acquire(key([99] * 5), now=2.0) as lease:
        assert lease.reserve(5, now=2.0)
        assert cache.stats().evicted_tokens == 8
    assert cache.peek(key(list(range(64)))).device == 56
    cache.check()


def test_a_parent_is_as_young_as_its_youngest_child_was() -> None:
    cache = PrefixCache(8)
    serve(cache, key([1, 2, 3]), 1.0)
    with cache.acquire(key([1, 2]), now=1.0), start(cache, key([8, 8]), 3.0):  # the held leaf is older than ...
        cache.acquire(key([1, 2, 3]), now=5.0).release()  # ... the last use of [1, 2], through its child
        with cache.acquire(key([]), now=6.0) as pressure:
            assert pressure.reserve(4, now=6.0)
            assert cache.peek(key([1, 2, 3])).device == 2
    with cache.acquire(key([]), now=7.0) as pressure:
        assert pressure.reserve(6, now=7.0)
        assert (cache.peek(key([1, 2])).device, cache.peek(key([8, 8])).device) == (2, 0)
        cache.check()


def test_a_merged_node_is_as_young_as_its_upper_part_was() -> None:
    cache = PrefixCache(8)
    serve(cache, key([1, 2, 3, 4]), 1.0)
    serve(cache, key([5, 6, 7, 8]), 2.0)
    with cache.acquire(key([1, 2]), now=3.0):
        pass
    assert cache.stats().nodes == 2
    with cache.acquire(key([]), now=4.0) as pressure:
        assert pressure.reserve(4, now=4.0)
        assert (cache.peek(key([1, 2, 3, 4])).device, cache.peek(key([5, 6, 7, 8])).device) == (4, 0)


def test_a_head_that_was_hit_as_often_as_its_tail_keeps_the_hits_of_both() -> None:
    cache = PrefixCache(8, policy=by_name("lfu"))
    serve(cache, key([1, 1, 1, 1]), 0.0)
    serve(cache, key([2, 2, 2, 2]), 1.0)
    for now, hit in ((2.0, key([1, 1, 1, 1])), (3.0, key([1, 1])), (4.0, key([2, 2, 2, 2]))):
        cache.acquire(hit, now=now).release()
    with cache.acquire(key([]), now=5.0) as pressure:
        assert pressure.reserve(4, now=5.0)
        assert (cache.peek(key([1, 1, 1, 1])).device, cache.peek(key([2, 2, 2, 2])).device) == (2, 2)
        cache.check()


def test_splitting_and_merging_keeps_no_memory_alive() -> None:
    cache = PrefixCache(20_000)
    tokens = np.arange(10_000, dtype=np.int32)
    serve(cache, key(tokens), 0.0)
    tracemalloc.start()
    try:
        for length in range(1, 1001):
            with cache.acquire(key(tokens), now=1.0, max_tokens=length * 9):
                pass
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


def test_an_evicted_run_takes_its_memory_along() -> None:
    cache = PrefixCache(100_000)
    serve(cache, key(np.arange(100_000, dtype=np.int32)), 0.0)
    with cache.acquire(key([]), now=1.0) as lease:
        assert lease.reserve(99_990, now=1.0)
        (leaf,) = cache._tree.roots.tops[namespace()].children.values()
        assert len(leaf.key) == 40
        assert leaf.key.__sizeof__() < 1000


def test_touching_a_leaf_for_ever_does_not_grow_the_order_of_victims() -> None:
    cache = PrefixCache(100)
    serve(cache, key([1, 2, 3]), 0.0)
    for now in range(1, 2000):
        serve(cache, key([4, 5, 6]), float(now))
    queue = cache._tree.queues.dirty[0]._queue
    assert isinstance(queue, RankedQueue)
    assert len(queue._heap) < 200
    cache.check()
