"""Short ways to say what a test means: namespaces by name, and whole requests on a cache."""

from hashlib import blake2b

from hicache.cache import Lease, PrefixCache
from hicache.keys import EXTRA_KEY_BYTES, Namespace, PrefixKey, TokenIds


def namespace(name: str = "tenant") -> Namespace:
    return Namespace(blake2b(name.encode(), digest_size=EXTRA_KEY_BYTES).digest())


def key(token_ids: TokenIds, name: str = "tenant") -> PrefixKey:
    return PrefixKey.of(namespace(name), token_ids)


def start(cache: PrefixCache, wanted: PrefixKey, now: float, *, priority: int = 0) -> Lease:
    """Do what the engine does up to the end of a prompt: match all but one token, compute the rest, publish it."""
    lease = cache.acquire(wanted, now=now, max_tokens=len(wanted) - 1, priority=priority)
    assert lease.reserve(len(wanted) - lease.num_tokens, now=now)
    lease.commit(wanted, now=now)
    return lease


def serve(cache: PrefixCache, wanted: PrefixKey, now: float, *, priority: int = 0) -> int:
    """Run one request from start to end and return its hit."""
    with start(cache, wanted, now, priority=priority) as lease:
        return lease.hit.device
