"""What the cache's event log says, as messages."""

from collections.abc import Iterator
from typing import Final

from hicache.events import CacheDigest, CacheEvent, EventKind, Holding, Snapshot, TierDigest, ToldTier
from hicache.keys import PAGE_HASH_BYTES, Namespace
from radixgate.v1 import worker_pb2

MAX_PART_BYTES: Final = 256 << 10
"""Of names and namespaces in one part of a snapshot."""

_TIERS: Final[dict[ToldTier, worker_pb2.CacheTier.ValueType]] = {
    "device": worker_pb2.CACHE_TIER_DEVICE,
    "host": worker_pb2.CACHE_TIER_HOST,
    "storage": worker_pb2.CACHE_TIER_STORAGE,
}
_CHANGES: Final = {
    EventKind.STORED: worker_pb2.CACHE_CHANGE_STORED,
    EventKind.REMOVED: worker_pb2.CACHE_CHANGE_REMOVED,
    EventKind.MOVED: worker_pb2.CACHE_CHANGE_MOVED,
}


def event_message(event: CacheEvent) -> worker_pb2.CacheEvent:
    return worker_pb2.CacheEvent(
        seq=event.seq,
        change=_CHANGES[event.kind],
        tier=_TIERS[event.tier],
        namespace=_namespace_message(event.namespace),
        names=event.packed,
    )


def digest_message(digest: CacheDigest) -> worker_pb2.CacheDigest:
    return worker_pb2.CacheDigest(
        seq=digest.seq, device=_tier_digest_message(digest.device), host=_tier_digest_message(digest.host)
    )


def snapshot_messages(snapshot: Snapshot, max_part_bytes: int = MAX_PART_BYTES) -> list[worker_pb2.CacheSnapshot]:
    """Return the parts of a snapshot, of at most `max_part_bytes` of names and namespaces each. There is at least one.

    A namespace that has much has several entries.
    """
    parts = [worker_pb2.CacheSnapshot(seq=snapshot.seq)]
    room = max_part_bytes
    for holding in snapshot.holdings:
        for piece in _pieces(holding, max_part_bytes // 4 // PAGE_HASH_BYTES * PAGE_HASH_BYTES):
            num_bytes = piece.ByteSize()
            if num_bytes > room:
                parts.append(worker_pb2.CacheSnapshot(seq=snapshot.seq, part=len(parts)))
                room = max_part_bytes
            room -= num_bytes
            parts[-1].holdings.append(piece)
    parts[-1].last = True
    return parts


def _pieces(holding: Holding, max_bytes: int) -> Iterator[worker_pb2.CacheHolding]:
    tier, namespace = _TIERS[holding.tier], _namespace_message(holding.namespace)
    for start in range(0, len(holding.packed), max_bytes):
        names = holding.packed[start : start + max_bytes]
        yield worker_pb2.CacheHolding(tier=tier, namespace=namespace, names=names)


def _namespace_message(namespace: Namespace) -> worker_pb2.CacheNamespace:
    return worker_pb2.CacheNamespace(extra_key=namespace.extra_key, adapter_revision=namespace.adapter_revision)


def _tier_digest_message(digest: TierDigest) -> worker_pb2.TierDigest:
    return worker_pb2.TierDigest(num_pages=digest.num_pages, sum=digest.total.to_bytes(PAGE_HASH_BYTES, "little"))
