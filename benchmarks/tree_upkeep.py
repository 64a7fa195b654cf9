"""What the cache costs beside serving: moving leaves to the host and off it, dropping a namespace, memory over time."""

import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

from benchmarks.tree_setup import LEAF_TOKENS, NAMESPACE, leaf_keys, random_tokens, store
from hicache.cache import PrefixCache
from hicache.copies.fake_transfer import InstantTransfer
from hicache.host import MirrorRules
from hicache.keys import PrefixKey
from hicache.tiered import HostTier, TieredCache

_PARENT_TOKENS = 64
_MOVED_LEAVES = 400
_SPLITS = 100_000


def demote_one(children: int) -> Iterator[float]:
    """Reserve a leaf's slots where all children of one parent have their copy on the host: one leaves the device."""
    cache = mirrored_children(children)
    with cache.acquire(PrefixKey.of(NAMESPACE, []), now=1e9) as lease:
        assert lease.reserve(cache.num_free_slots, now=1e9)
        for _ in range(_MOVED_LEAVES):
            start = perf_counter()
            reserved = lease.reserve(LEAF_TOKENS, now=1e9)
            yield perf_counter() - start
            assert reserved
        stats = cache.tier_stats()
        assert stats is not None
        assert (cache.stats().leaves, stats.host_lost_tokens) == (children, 0)


def evict_one_on_host(children: int) -> Iterator[float]:
    """Free a leaf's slots on the host, where all children of one parent lie there alone."""
    cache = mirrored_children(children)
    with cache.acquire(PrefixKey.of(NAMESPACE, []), now=1e9) as lease:
        assert lease.reserve(children * LEAF_TOKENS, now=1e9)
    for _ in range(_MOVED_LEAVES):
        before = cache.stats().leaves
        start = perf_counter()
        cache._removal.evict_on_host(LEAF_TOKENS * 4, cache._shares.common)
        yield perf_counter() - start
        assert cache.stats().leaves == before - 1


def drop(nodes: int) -> tuple[float, float]:
    """Drop a namespace of so many nodes. Returns the CPU seconds of the call and of the longest tick that follows."""
    cache = PrefixCache(nodes * LEAF_TOKENS)
    for age, key in enumerate(leaf_keys(nodes)):
        store(cache, key, float(age))
    assert cache.stats().nodes == nodes
    start = process_time()
    cache.drop(NAMESPACE)
    dropped = process_time() - start
    longest = 0.0
    while cache.pending:
        start = process_time()
        cache.tick(1e9)
        longest = max(longest, process_time() - start)
    assert cache.num_free_slots == cache.num_slots
    return dropped, longest


def resident_over_splits() -> tuple[int, int]:
    """Return resident memory in bytes before and after many matches that each split a node, which merges again."""
    cache = PrefixCache(2_048)
    tokens = random_tokens(1_024)
    store(cache, PrefixKey.of(NAMESPACE, tokens))
    cuts = np.random.default_rng(2).integers(1, 1_023, size=1_000).tolist()
    keys = [PrefixKey.of(NAMESPACE, tokens).prefix(cut).extend([50_001]) for cut in cuts]
    before = 0
    for index in range(_SPLITS + len(keys)):
        if index == len(keys):
            before = _resident_bytes()
        with cache.acquire(keys[index % len(keys)], now=1.0):
            pass
        assert cache.stats().nodes == 1
    return before, _resident_bytes()


def mirrored_children(children: int) -> TieredCache:
    """Return a cache with one parent, all of whose children lie on the device and on the host."""
    num_slots = _PARENT_TOKENS + children * LEAF_TOKENS
    rules = MirrorRules(low_watermark=0.0, high_watermark=0.0, max_flying_tokens=2 * num_slots)
    cache = TieredCache(num_slots, HostTier(num_slots, InstantTransfer(), rules=rules))
    parent = PrefixKey.of(NAMESPACE, random_tokens(_PARENT_TOKENS))
    for age, key in enumerate(leaf_keys(children)):
        store(cache, parent.extend(key.token_ids), float(age))
    cache.prepare(num_slots, now=1e6)
    assert cache.stats().nodes == children + 1
    return cache


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
