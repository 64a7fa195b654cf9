"""Runs a trace through the real cache, one request after the other, and notes what each hit. No model, no tensors."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cli.replay.trace import TraceRequest
from hicache.cache import PrefixCache
from hicache.copies.cost import LoadCostConfig, LoadCostModel
from hicache.copies.fake_transfer import InstantTransfer
from hicache.host import MirrorRules
from hicache.keys import EXTRA_KEY_BYTES, Int32Array, Namespace, PrefixKey
from hicache.radix import policy
from hicache.tiered import HostTier, TieredCache

_REPORT_EVERY = 64  # requests
_MAX_SLOTS = 2**31 - 1

# Copies take no time here, so none is made before its slots are needed, and none has to wait for another.
_COPY_WHATEVER_LEAVES = MirrorRules(
    low_watermark=0.0, high_watermark=0.0, max_flying_tokens=_MAX_SLOTS, max_copy_tokens=_MAX_SLOTS
)

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """What is asked of a cache: slots by tier, both in whole pages, and who is evicted."""

    device_slots: int | None = None  # None: as many as the trace can fill
    host_slots: int = 0
    page_size: int = 1
    policy: str = "lru"


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of each request, in the order of the trace, and the totals."""

    cache: CacheSize
    timestamps_s: NDArray[np.float64]  # [requests]
    prompt_tokens: IntArray  # [requests]
    device_hits: IntArray  # [requests], tokens
    host_hits: IntArray  # [requests], tokens
    cached_tokens: int  # on the device at the end
    evicted_tokens: int  # from the device
    seconds: float

    @property
    def device(self) -> float:
        """The share of all prompt tokens that was found on the device."""
        return _share(self.device_hits, self.prompt_tokens)

    @property
    def host(self) -> float:
        """The share of all prompt tokens that was found on the host and not on the device."""
        return _share(self.host_hits, self.prompt_tokens)

    @property
    def hit_rate(self) -> float:
        return self.device + self.host


def make_cache(size: CacheSize, num_tokens: int) -> PrefixCache:
    """Return an empty cache for a trace of `num_tokens`. Raises ValueError if there can be none of that size."""
    # Every request may leave its last page half empty while it runs, one at a time.
    enough = (num_tokens // size.page_size + 1) * size.page_size
    num_slots = enough if size.device_slots is None else _at_most(size.device_slots, enough, size.page_size)
    num_host_slots = _at_most(size.host_slots, enough, size.page_size)
    if num_slots > _MAX_SLOTS:
        raise ValueError(f"device_slots must be at most {_MAX_SLOTS}, the trace would take {num_slots}")
    chosen = policy.by_name(size.policy)
    if not num_host_slots:
        return PrefixCache(num_slots, page_size=size.page_size, policy=chosen)
    host = HostTier(
        num_slots=num_host_slots,
        transfer=InstantTransfer(),
        rules=_COPY_WHATEVER_LEAVES,
        cost=LoadCostModel(LoadCostConfig(load_back_threshold=1)),
    )
    return TieredCache(num_slots, host, page_size=size.page_size, policy=chosen)


def _at_most(num_slots: int, enough: int, page_size: int) -> int:
    """Slots that no trace token can reach take memory and change nothing. What is no whole pages is left as it is."""
    return num_slots if num_slots % page_size else min(num_slots, enough)


class Workload(Protocol):
    """Requests in the order of their time, and how many tokens all their prompts and outputs have."""

    @property
    def num_tokens(self) -> int: ...

    def __iter__(self) -> Iterator[TraceRequest]: ...


def replay(trace: Workload, size: CacheSize, progress: Callable[[int], None] = lambda num_served: None) -> Replay:
    """Serve every request to its end before the next one begins.

    A request hits at most all of its prompt but the last token. Its prompt is stored, and its output if that is known,
    but for the last token, whose KV is never computed. Of a request that is longer than the device's pool, as much of
    its beginning is stored as fits: the rest is computed in chunks that nobody keeps.
    """
    cache = make_cache(size, trace.num_tokens)
    namespaces: dict[str, Namespace] = {}
    rows: list[tuple[float, int, int, int]] = []
    start = perf_counter()
    for request in trace:
        namespace = namespaces.get(request.tenant) or namespaces.setdefault(request.tenant, _namespace(request.tenant))
        device, host = _serve(cache, namespace, request)
        rows.append((request.timestamp_s, len(request.prompt), device, host))
        if not len(rows) % _REPORT_EVERY:
            progress(len(rows))
    seconds = perf_counter() - start
    counts = np.array([row[1:] for row in rows], dtype=np.int64).reshape(-1, 3)
    return Replay(
        cache=size,
        timestamps_s=np.array([row[0] for row in rows]),
        prompt_tokens=counts[:, 0],
        device_hits=counts[:, 1],
        host_hits=counts[:, 2],
        cached_tokens=cache.num_cached_slots,
        evicted_tokens=cache.stats().evicted_tokens,
        seconds=seconds,
    )


def _serve(cache: PrefixCache, namespace: Namespace, request: TraceRequest) -> tuple[int, int]:
    """Return the tokens hit on the device and on the host."""
    now = request.timestamp_s
    key = PrefixKey.of(namespace, _stored(request, cache.num_slots))
    with cache.acquire(key, now=now, max_tokens=len(request.prompt) - 1) as lease:
        cache.prepare(len(key) - lease.num_tokens, now=now)
        lease.load_back(now=now)
        missing = len(key) - lease.num_tokens
        cache.prepare(missing, now=now)
        cache.tick(now)
        # The cache serves one request at a time, so whatever is not its own can be evicted for it.
        if not lease.reserve(missing, now=now):
            raise AssertionError(f"an idle cache of {cache.num_slots} slots has no room for {len(key)} tokens")
        lease.commit(key, now=now)
        return lease.hit.device, lease.hit.host


def _stored(request: TraceRequest, most: int) -> Int32Array:
    if len(request.output) > 1:
        return np.concatenate([request.prompt, request.output[:-1]])[:most]
    return request.prompt[:most]


def _namespace(tenant: str) -> Namespace:
    return Namespace(blake2b(tenant.encode(), digest_size=EXTRA_KEY_BYTES).digest())


def _share(part: IntArray, whole: IntArray) -> float:
    return float(part.sum()) / max(int(whole.sum()), 1)
