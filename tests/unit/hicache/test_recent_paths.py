"""A match follows the path that the last one took, and ends where it would have ended without."""

import pytest

from hicache.cache import PrefixCache
from hicache.keys import PrefixKey, Segment
from tests.unit.hicache.support import key, namespace, serve

STEM = list(range(8))


def forked(page_size: int = 1) -> PrefixCache:
    """A stem with two branches, of which the first was taken last."""
    cache = PrefixCache(64, page_size=page_size)
    serve(cache, key([*STEM, 20, 21, 22, 23]), 1.0)
    serve(cache, key([*STEM, 30, 31, 32, 33]), 2.0)
    cache.acquire(key([*STEM, 20, 21, 22, 23]), now=3.0).release()
    return cache


@pytest.mark.parametrize("max_tokens", [0, 3, 8, 9, 11, 12])
@pytest.mark.parametrize("page_size", [1, 2])
def test_no_more_is_hit_than_may_be_hit(max_tokens: int, page_size: int) -> None:
    cache = forked(page_size)
    wanted = key([*STEM, 20, 21, 22, 23])
    expected = max_tokens // page_size * page_size
    assert cache.peek(wanted, max_tokens=max_tokens).device == expected
    with cache.acquire(wanted, now=4.0, max_tokens=max_tokens) as lease:
        assert lease.hit.device == expected
        assert len(lease.slots) == expected
        cache.check()


def test_tokens_behind_the_last_whole_page_are_not_hit() -> None:
    cache = forked(page_size=2)
    wanted = key([*STEM, 20, 21, 22])  # the node goes on with 23
    assert cache.peek(wanted).device == 10
    with cache.acquire(wanted, now=4.0) as lease:
        assert lease.hit.device == 10
        cache.check()


def test_the_other_branch_is_found_as_well() -> None:
    cache = forked()
    assert cache.peek(key([*STEM, 30, 31, 32, 33])).device == 12
    assert serve(cache, key([*STEM, 30, 31, 9, 9]), 4.0) == 10
    cache.check()


def test_what_was_trimmed_or_evicted_is_not_hit() -> None:
    cache = forked()
    with cache.acquire(key([99]), now=5.0) as other:
        assert other.reserve(cache.num_free_slots + 4 + 2, now=5.0)  # the branch with 30 goes, and half of the other
        assert cache.peek(key([*STEM, 20, 21, 22, 23])).device == 10
        assert cache.peek(key([*STEM, 30])).device == 8
        cache.check()


def test_a_path_through_a_public_prefix_ends_where_it_may() -> None:
    cache = PrefixCache(64)
    public = PrefixKey((Segment(namespace("public"), [1, 2, 3, 4]), Segment(namespace("guest"), [5, 6, 7, 8])))
    for now in (1.0, 2.0):
        serve(cache, public, now)
    for max_tokens in range(9):
        assert cache.peek(public, max_tokens=max_tokens).device == max_tokens
        with cache.acquire(public, now=3.0, max_tokens=max_tokens) as lease:
            assert lease.hit.device == max_tokens
            cache.check()
