"""Leaving a tier, with copies made by hand: what goes, and what is remembered of its use."""

from hicache.cache import Hit, PrefixCache
from hicache.radix.node import Node
from tests.unit.hicache.faults import Host
from tests.unit.hicache.support import key, serve, start

A, B = key([1] * 8), key([2] * 8)


def two_tiers(num_slots: int) -> tuple[PrefixCache, Host]:
    host = Host()
    return PrefixCache(num_slots, host=host), host


def settled(cache: PrefixCache, host: Host, tokens: list[int], now: float) -> Node:
    """Use a prompt, and give all of its path a copy on the host, bottom up."""
    with cache.acquire(key(tokens), now=now) as lease:
        node = above = lease._node
    assert node is not None
    while above is not None:
        assert above.space is not None
        above.host_value = host.take(len(above.key))
        for owner in (above.space, above.space.account):
            owner.host_bytes += len(above.key)
        cache._tree.queues.replace(above)
        if not above.blockers:
            cache._tree.queues.settle(above)
        above = above.above
    cache.check()
    return node


def test_what_has_a_copy_goes_first_and_stays_on_the_host() -> None:
    cache, host = two_tiers(16)
    serve(cache, B, 1.0)
    serve(cache, A, 2.0)
    settled(cache, host, [1] * 8, 3.0)
    with cache.acquire(key([]), now=4.0) as pressure:
        assert pressure.reserve(8, now=4.0)
        assert (cache.peek(A), cache.peek(B)) == (Hit(0, 8), Hit(8))
        cache.check()
        assert pressure.reserve(8, now=4.0)
        assert (cache.peek(A), cache.peek(B)) == (Hit(0, 8), Hit(0))
        cache.check()


def test_a_head_whose_tail_moved_to_the_host_is_as_young_as_the_tail() -> None:
    cache, host = two_tiers(16)
    serve(cache, A, 1.0)
    serve(cache, B, 2.0)
    settled(cache, host, [2] * 8, 3.0)
    settled(cache, host, [1] * 8, 4.0)
    with cache.acquire(key([]), now=5.0) as pressure:
        assert pressure.reserve(12, now=5.0)
        assert (cache.peek(A), cache.peek(B)) == (Hit(4, 4), Hit(0, 8))
        cache.check()
    settled_head = cache._tree.queues.ready[0].first()
    assert (settled_head.num_tokens, settled_head.last_access_time) == (4, 4.0)


def test_a_prefix_on_the_host_is_as_young_as_what_was_used_below_it() -> None:
    cache, host = two_tiers(16)
    serve(cache, A, 1.0)
    settled(cache, host, [1] * 8, 1.0)
    serve(cache, B, 2.0)
    settled(cache, host, [2] * 8, 2.0)
    with cache.acquire(key([]), now=3.0) as pressure:
        assert pressure.reserve(16, now=3.0)
        cache._tree.match_on_host(A.parts(1), None, 16, 3.0, 0)  # splits A: its head was used at 3 ...
        cache._tree.match_on_host(A.parts(1), None, 32, 4.0, 0)  # ... and its tail at 4
        cache.check()
        account = cache._shares.common
        cache._removal.evict_on_host(32, account)
        assert (cache.peek(A), cache.peek(B)) == (Hit(0, 8), Hit(0))
        cache._removal.evict_on_host(16, account)
        assert cache.peek(A) == Hit(0, 4)
        head = cache._tree.queues.cold[0].first()
        assert (head.num_tokens, head.last_access_time) == (4, 4.0)
        cache.check()


def test_what_only_the_host_has_is_lost_with_the_prefix_above_it() -> None:
    cache, host = two_tiers(16)
    serve(cache, A, 1.0)
    settled(cache, host, [1] * 8, 1.0)
    with cache.acquire(key([]), now=2.0) as pressure:
        assert pressure.reserve(12, now=2.0)
    assert cache.peek(A) == Hit(4, 4)
    with start(cache, key([1] * 4), 3.0) as lease:
        head = lease._node
    assert head is not None
    cache._removal.forget_on_host(head)
    cache.check()
    with cache.acquire(key([]), now=4.0) as pressure:
        assert pressure.reserve(14, now=4.0)
        assert cache.peek(A) == Hit(2)
        cache.check()
    assert host.slots.num_free == 64
    assert cache.holdings(key([1]).namespaces[0]).host == 0
