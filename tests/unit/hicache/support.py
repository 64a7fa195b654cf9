"""Short ways to say what a test means: namespaces by name, and whole requests on a cache."""

from collections import Counter
from hashlib import blake2b

from hicache.cache import Lease, PrefixCache
from hicache.keys import EXTRA_KEY_BYTES, PAGE_HASH_BYTES, Namespace, PrefixKey, TokenIds
from hicache.radix.naming import PageNames
from hicache.radix.node import Node
from hicache.radix.watch import Tier


def namespace(name: str = "tenant") -> Namespace:
    return Namespace(blake2b(name.encode(), digest_size=EXTRA_KEY_BYTES).digest())


def key(token_ids: TokenIds, name: str = "tenant") -> PrefixKey:
    return PrefixKey.of(namespace(name), token_ids)


def start(cache: PrefixCache, wanted: PrefixKey, now: float, *, priority: int = 0, tenant: str = "") -> Lease:
    """Do what the engine does up to the end of a prompt: match all but one token, compute the rest, publish it."""
    lease = cache.acquire(wanted, now=now, max_tokens=len(wanted) - 1, priority=priority, tenant=tenant)
    assert lease.reserve(len(wanted) - lease.num_tokens, now=now)
    lease.commit(wanted, now=now)
    return lease


def serve(cache: PrefixCache, wanted: PrefixKey, now: float, *, priority: int = 0, tenant: str = "") -> int:
    """Run one request from start to end and return its hit."""
    with start(cache, wanted, now, priority=priority, tenant=tenant) as lease:
        return lease.hit.device


def drop(cache: PrefixCache, name: str = "tenant", now: float = 0.0) -> int:
    """Drop a namespace, and free all that can be freed of it. Returns how many slots that is."""
    free = cache.num_free_slots
    cache.drop(namespace(name))
    settle(cache, now)
    return cache.num_free_slots - free


def settle(cache: PrefixCache, now: float = 0.0) -> None:
    """Let everything that was dropped be freed."""
    for _ in range(10_000):
        if not cache.pending:
            return
        cache.tick(now)
    raise AssertionError(f"{cache.pending} things never end")


class Diary:
    """Watches a cache without a host, and knows the name of every page that is there.

    A name can be there several times: what was dropped and is not freed yet keeps its own; and to a page that is larger
    than one of the tree it does not matter where exactly the barrier within it lies.
    """

    def __init__(self, names: PageNames) -> None:
        self.names = names
        self.held: Counter[bytes] = Counter()

    def stored(self, node: Node, begin: int, tier: Tier) -> None:
        self.held += self._pages(node, begin)

    def removed(self, node: Node, begin: int, tier: Tier) -> None:
        gone = self._pages(node, begin)
        assert gone <= self.held
        self.held -= gone

    def moved(self, node: Node, begin: int) -> None:
        raise AssertionError("there is no host to move to")

    def _pages(self, node: Node, begin: int) -> Counter[bytes]:
        names = self.names.between(node, begin, node.depth)
        return Counter(names[start : start + PAGE_HASH_BYTES] for start in range(0, len(names), PAGE_HASH_BYTES))
