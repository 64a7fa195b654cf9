"""Caches and keys that the benchmarks of the tree start from. Seeded: every run builds the same."""

import numpy as np
from numpy.typing import NDArray

from hicache.cache import Lease, PrefixCache
from hicache.keys import Namespace, PrefixKey
from hicache.radix.node import Node

Tokens = NDArray[np.int32]

NAMESPACE = Namespace(bytes(16))
VOCABULARY = 50_000
LEAF_TOKENS = 32


def random_tokens(num_tokens: int, rng: np.random.Generator | None = None) -> Tokens:
    return (rng or np.random.default_rng(0)).integers(VOCABULARY, size=num_tokens, dtype=np.int32)


def advance(lease: Lease, key: PrefixKey, now: float) -> None:
    if not lease.reserve(len(key) - lease.num_tokens, now=now):
        raise MemoryError("the pool is too small for one request")
    lease.commit(key, now=now)


def store(cache: PrefixCache, key: PrefixKey, now: float = 0.0) -> None:
    with cache.acquire(key, now=now) as lease:
        advance(lease, key, now)


def chain(cache: PrefixCache, num_tokens: int, num_nodes: int) -> PrefixKey:
    """Cache a path of `num_nodes` nodes of equal length and return its key. Each node but the last one branches."""
    tokens = random_tokens(num_tokens)
    key = PrefixKey.of(NAMESPACE, tokens)
    store(cache, key)
    for index in range(1, num_nodes):
        end = index * num_tokens // num_nodes
        store(cache, key.prefix(end).extend([VOCABULARY]))
    return key


def depth(node: Node) -> int:
    """Return how many nodes lie on the path down to `node`, itself included, the root not."""
    nodes = 0
    above: Node | None = node
    while above is not None and not above.is_root:
        nodes, above = nodes + 1, above.parent
    return nodes


def leaf_keys(leaves: int) -> list[PrefixKey]:
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=(leaves, LEAF_TOKENS), dtype=np.int32)
    tokens[:, 0] = np.arange(leaves)  # no two share a prefix
    return [PrefixKey.of(NAMESPACE, row) for row in tokens]


def full_of_leaves(leaves: int) -> PrefixCache:
    """Return a cache without a free slot whose leaves were stored in random order of age."""
    cache = PrefixCache(leaves * LEAF_TOKENS)
    ages = np.random.default_rng(1).permutation(leaves).tolist()
    for age, key in zip(ages, leaf_keys(leaves), strict=True):
        store(cache, key, float(age))
    assert cache.num_free_slots == 0
    assert cache.stats().leaves == leaves
    return cache
