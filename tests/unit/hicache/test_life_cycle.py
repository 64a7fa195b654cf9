"""The textbook life of two requests that share a prefix."""

import numpy as np
import pytest

from hicache.cache import PrefixCache
from tests.unit.hicache.support import key, serve, start

X, Y, Z = 10, 11, 12
A = key([X, Y, Z, 1, 2, 3])
B = key([X, Y, Z, 4, 5, 6])


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(9)


def test_the_second_request_hits_what_it_shares_and_keeps_the_same_slots(cache: PrefixCache) -> None:
    with start(cache, A, 1.0) as a:
        slots_of_a = a.slots.copy()
    with start(cache, B, 2.0) as b:
        assert b.hit.device == 3
        assert np.array_equal(b.slots[:3], slots_of_a[:3])
        cache.check()
    assert (cache.stats().nodes, cache.stats().leaves) == (3, 2)


def test_the_path_to_the_root_is_protected_while_in_use(cache: PrefixCache) -> None:
    serve(cache, A, 1.0)
    with start(cache, B, 2.0):
        assert cache.num_evictable_slots == 3
        with cache.acquire(key([7, 8, 9, 10]), now=3.0) as other:
            assert not other.reserve(4, now=3.0)
            assert other.reserve(3, now=3.0)
            cache.check()
        assert cache.peek(B).device == 6
        assert cache.peek(A).device == 3


def test_under_pressure_the_older_leaf_goes_first_then_the_younger_then_the_shared_node(cache: PrefixCache) -> None:
    serve(cache, A, 1.0)
    serve(cache, B, 2.0)
    survivors = []
    with cache.acquire(key([99] * 9), now=3.0) as pressure:
        for _ in range(9):
            assert pressure.reserve(1, now=3.0)
            survivors.append((cache.peek(A).device, cache.peek(B).device))
            cache.check()
    assert survivors == [(5, 6), (4, 6), (3, 6), (3, 5), (3, 4), (3, 3), (2, 2), (1, 1), (0, 0)]


@pytest.mark.parametrize(("page_size", "hit"), [(1, 900), (16, 896)])
def test_a_request_that_shares_900_of_1000_tokens_hits_whole_pages_of_them(page_size: int, hit: int) -> None:
    cache = PrefixCache(4096, page_size=page_size)
    tokens = list(range(1000))
    serve(cache, key(tokens), 1.0)
    assert serve(cache, key([*tokens[:900], *range(5000, 5100)]), 2.0) == hit
    cache.check()
