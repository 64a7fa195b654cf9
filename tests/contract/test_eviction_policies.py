"""What every eviction policy must do, and what tells each from the others."""

from itertools import permutations

import pytest

from hicache.cache import PrefixCache
from hicache.radix import policy
from hicache.radix.node import Node
from hicache.radix.policy import EvictionPolicy
from tests.unit.hicache.support import key, serve

A, B, C = key([1] * 4), key([2] * 4), key([3] * 4)
NAMES = {"A": A, "B": B, "C": C}
ROOM = 13  # all three, and the one token that a repeated prompt computes again


@pytest.fixture(params=policy.NAMES)
def each(request: pytest.FixtureRequest) -> EvictionPolicy:
    return policy.by_name(request.param)


def eviction_order(cache: PrefixCache) -> str:
    """Take the pool slot by slot and note who goes."""
    order = ""
    with cache.acquire(key([]), now=1000.0) as pressure:
        while pressure.reserve(1, now=1000.0):
            gone = [name for name, entry in NAMES.items() if not cache.peek(entry).device]
            order += "".join(name for name in gone if name not in order)
    return order


def order_after(chosen: str | EvictionPolicy, requests: str, priorities: str = "") -> str:
    """Store and then hit A, B and C as `requests` says, one a second; return the order in which they are given up."""
    cache = PrefixCache(ROOM, policy=policy.by_name(chosen) if isinstance(chosen, str) else chosen)
    for now, (request, priority) in enumerate(zip(requests, priorities or "0" * len(requests), strict=True)):
        if cache.peek(NAMES[request]).device:
            cache.acquire(NAMES[request], now=float(now), priority=int(priority)).release()
        else:
            serve(cache, NAMES[request], float(now), priority=int(priority))
    cache.check()
    return eviction_order(cache)


def test_a_policy_is_found_by_its_own_name(each: EvictionPolicy) -> None:
    assert policy.by_name(each.name).name == each.name


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"'random', expected one of {', '.join(policy.NAMES)}"):
        policy.by_name("random")


def test_ranks_of_one_policy_can_be_compared_and_do_not_change_by_looking(each: EvictionPolicy) -> None:
    mixed = permutations(range(4), 2)
    nodes = [Node(bytearray(4), bytearray(4), None, None, float(now), priority) for now, priority in mixed]
    ranks = [each.rank(node) for node in nodes]
    assert sorted(ranks) == sorted(each.rank(node) for node in nodes)


def test_two_halves_of_one_node_are_equally_protected(each: EvictionPolicy) -> None:
    whole = Node(bytearray(8), bytearray(8), None, None, 1.0, 3)
    half = Node(bytearray(4), bytearray(4), None, None, 1.0, 3)
    assert each.same_protection(whole, half)


def test_every_policy_gives_up_everything_that_nobody_holds(each: EvictionPolicy) -> None:
    cache = PrefixCache(ROOM, policy=each)
    for now, entry in enumerate((A, B, C, A, A, B)):
        serve(cache, entry, float(now), priority=now % 2)
    assert sorted(eviction_order(cache)) == ["A", "B", "C"]
    cache.check()


def test_no_policy_gives_up_what_is_held(each: EvictionPolicy) -> None:
    cache = PrefixCache(ROOM, policy=each)
    for now, entry in enumerate((A, B, C)):
        serve(cache, entry, float(now))
    with cache.acquire(A, now=5.0):
        assert sorted(eviction_order(cache)) == ["B", "C"]
        assert cache.peek(A).device == 4


def test_lru_keeps_what_was_used_last() -> None:
    assert order_after("lru", "ABCA") == "BCA"


def test_mru_keeps_what_was_not_used_for_longest() -> None:
    assert order_after("mru", "ABCA") == "ACB"


def test_lfu_keeps_what_is_hit_most() -> None:
    assert order_after("lfu", "ABAABC") == "CBA"


def test_fifo_looks_at_arrival_only() -> None:
    assert order_after("fifo", "ABCAA") == "ABC"


def test_filo_keeps_what_came_first() -> None:
    assert order_after("filo", "ABCAA") == "CBA"


def test_slru_lets_go_first_what_was_never_hit() -> None:
    assert order_after("slru", "AABC") == "BCA"


def test_slru_demotes_the_coldest_when_too_much_was_hit() -> None:
    # When B is hit, A and B would both be protected; A, hit earlier, is back among those that came once.
    assert order_after(policy.SLRU(protected_share=0.5), "AABBC") == "ACB"
    assert order_after(policy.SLRU(protected_share=1.0), "AABBC") == "CAB"


def test_priority_goes_before_age() -> None:
    assert order_after("priority", "ABC", "211") == "BCA"


def test_a_priority_is_worth_a_minute_of_age_and_no_more() -> None:
    cache = PrefixCache(ROOM, policy=policy.by_name("priority"))
    serve(cache, A, 0.0, priority=2)
    serve(cache, B, 119.0)
    serve(cache, C, 121.0)
    assert eviction_order(cache) == "BAC"


def test_fifo_counts_from_the_newest_token() -> None:
    cache = PrefixCache(ROOM, policy=policy.by_name("fifo"))
    serve(cache, A, 0.0)
    serve(cache, B, 1.0)
    serve(cache, C, 2.0)
    serve(cache, key([1] * 5), 3.0)
    assert eviction_order(cache) == "BCA"


def test_lfu_remembers_the_hits_of_a_head_that_was_split_off() -> None:
    cache = PrefixCache(8, policy=policy.by_name("lfu"))
    serve(cache, A, 0.0)
    serve(cache, B, 1.0)
    for now, hit in ((2.0, A), (3.0, A), (4.0, B), (5.0, B), (6.0, A.prefix(2))):
        cache.acquire(hit, now=now).release()
    with cache.acquire(key([]), now=7.0) as pressure:
        assert pressure.reserve(6, now=7.0)
        assert (cache.peek(A).device, cache.peek(B).device) == (2, 0)


def test_a_shared_prefix_takes_the_priority_of_whoever_used_it() -> None:
    cache = PrefixCache(8, policy=policy.by_name("priority"))
    serve(cache, key([1, 2, 3]), 1.0)
    with cache.acquire(key([1, 2]), now=1.0), cache.acquire(key([8, 8]), now=1.0, priority=1) as other:
        assert other.reserve(2, now=1.0)
        other.commit(key([8, 8]), now=1.0)
        cache.acquire(key([1, 2, 3]), now=2.0, priority=5).release()
        with cache.acquire(key([]), now=3.0) as pressure:
            assert pressure.reserve(4, now=3.0)
            assert cache.peek(key([1, 2, 3])).device == 2
    with cache.acquire(key([]), now=4.0) as pressure:
        assert pressure.reserve(6, now=4.0)
        assert (cache.peek(key([1, 2])).device, cache.peek(key([8, 8])).device) == (2, 0)


def test_a_better_protected_head_is_not_merged_into_its_tail() -> None:
    cache = PrefixCache(8, policy=policy.by_name("priority"))
    serve(cache, key([1, 1, 1, 1, 5, 5, 5, 5]), 1.0, priority=1)
    with cache.acquire(key([1, 1, 1, 1]), now=2.0, priority=9):
        pass
    assert cache.stats().nodes == 2
    cache.check()
