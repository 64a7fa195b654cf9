"""Short ways to say what a test means: namespaces by name, and whole requests on a cache."""

from hashlib import blake2b

from hicache.cache import Lease, PrefixCache
from hicache.keys import EXTRA_KEY_BYTES, Namespace, PrefixKey, TokenIds


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
    while cache._removal.has_limbo:
        cache.tick(now)
