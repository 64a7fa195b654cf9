"""Under LRU the tree evicts exactly what a cache of single pages would, each with a time of its own."""

import random

import pytest

from hicache.cache import PrefixCache
from tests.unit.hicache.support import key, serve


class PagewiseLRU:
    """The obvious cache: a time for every prefix of whole pages; the oldest go first, among equals the longest."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.last_used: dict[tuple[int, ...], int] = {}

    def serve(self, tokens: list[int], now: int) -> int:
        prefixes = [tuple(tokens[:end]) for end in range(self.page_size, len(tokens) + 1, self.page_size)]
        hits = [prefix for prefix in prefixes if prefix in self.last_used and len(prefix) < len(tokens)]
        missing = len(self.last_used) + len(prefixes) - len(hits) - self.num_pages
        evictable = sorted(self.last_used.keys() - set(hits), key=lambda prefix: (self.last_used[prefix], -len(prefix)))
        for prefix in evictable[: max(0, missing)]:
            del self.last_used[prefix]
        self.last_used.update(dict.fromkeys(prefixes, now))
        return len(hits) * self.page_size


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("num_pages", [24, 60, 200])
@pytest.mark.parametrize("seed", range(3))
def test_every_hit_is_that_of_a_pagewise_lru(page_size: int, num_pages: int, seed: int) -> None:
    choose = random.Random(seed)
    cache, oracle = PrefixCache(num_pages * page_size, page_size=page_size), PagewiseLRU(num_pages, page_size)
    conversations: list[list[int]] = [[]]
    hits = []
    for now in range(400):
        history = choose.choice(conversations[-12:])
        history = (
            history[: choose.randint(0, len(history) // page_size) * page_size] if choose.random() < 0.5 else history
        )
        fresh = choose.randint(1, 6) * page_size
        # The last token is the request's own: each one ends in a page that nobody else has.
        tokens = [*history, *(choose.randint(0, 1) for _ in range(fresh - 1)), 1000 + now][: 20 * page_size]
        tokens[-1] = 1000 + now
        conversations.append(tokens)
        hits.append(serve(cache, key(tokens), float(now)))
        assert hits[-1] == oracle.serve(tokens, now), f"request {now}"
    cache.check()
    assert sum(hits) > 0
    assert cache.stats().evicted_tokens > 0
