"""What is remembered of hits, and when it is asked for again."""

import numpy as np

from hicache.cache import Hit, PrefixCache
from hicache.keys import PrefixKey
from tests.unit.worker.engine.waiting_sequences import namespace_of, waiting
from worker.engine.waiting import KnownHits


class CountingCache(PrefixCache):
    num_peeks = 0

    def peek(self, key: PrefixKey, *, max_tokens: int | None = None) -> Hit:
        self.num_peeks += 1
        return super().peek(key, max_tokens=max_tokens)


def key(tenant: str, tokens: list[int]) -> PrefixKey:
    return PrefixKey.of(namespace_of(tenant), np.array(tokens, dtype=np.int32))


def store(cache: PrefixCache, tenant: str, tokens: list[int]) -> None:
    with cache.acquire(key(tenant, tokens), now=0.0) as lease:
        assert lease.reserve(len(tokens) - lease.num_tokens, now=0.0)
        lease.commit(key(tenant, tokens), now=0.0)


def test_a_hit_is_asked_for_once_as_long_as_nothing_changes() -> None:
    cache = CountingCache(100)
    store(cache, "a", [1, 2, 3])
    hits, sequence = KnownHits(cache), waiting(0, [1, 2, 3, 4])
    assert [hits.of(sequence).device for _ in range(5)] == [3] * 5
    assert cache.num_peeks == 1


def test_what_other_tenants_store_is_no_reason_to_ask() -> None:
    cache = CountingCache(100)
    hits, sequence = KnownHits(cache), waiting(0, [1, 2, 3, 4])
    hits.of(sequence)
    store(cache, "b", [1, 2, 3])
    hits.of(sequence)
    assert cache.num_peeks == 1


def test_what_is_stored_evicted_or_dropped_is_noticed() -> None:
    cache = CountingCache(10)
    hits, sequence = KnownHits(cache), waiting(0, [1, 2, 3, 4])
    assert hits.of(sequence).device == 0
    store(cache, "a", [1, 2, 3])
    assert hits.of(sequence).device == 3
    store(cache, "b", [5] * 9)
    assert hits.of(sequence).device < 3
    store(cache, "a", [1, 2, 3])
    assert hits.of(sequence).device == 3
    cache.drop(namespace_of("a"))
    assert hits.of(sequence).device == 0
    store(cache, "a", [1, 2])
    assert hits.of(sequence).device == 2


def test_at_least_one_token_is_left_to_compute() -> None:
    cache = CountingCache(10)
    store(cache, "a", [1, 2, 3])
    assert KnownHits(cache).cached_tokens(waiting(0, [1, 2, 3])) == 2


def test_who_does_not_wait_any_more_is_forgotten() -> None:
    cache = CountingCache(10)
    hits, sequence = KnownHits(cache), waiting(0)
    hits.of(sequence)
    hits.forget(sequence)
    hits.forget(sequence)
    hits.of(sequence)
    assert cache.num_peeks == 2
