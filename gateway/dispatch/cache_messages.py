"""What workers tell of their caches, from messages to values."""

from collections.abc import Iterator, Mapping
from typing import Final

from gateway.routing.following import CacheDigest, CacheEvent, Change, Tier, TierDigest
from radixgate.v1 import worker_pb2

_CHANGES: Final[Mapping[int, Change]] = {
    worker_pb2.CACHE_CHANGE_STORED: "stored",
    worker_pb2.CACHE_CHANGE_REMOVED: "removed",
    worker_pb2.CACHE_CHANGE_MOVED: "moved",
}
_TIERS: Final[Mapping[int, Tier]] = {
    worker_pb2.CACHE_TIER_DEVICE: "device",
    worker_pb2.CACHE_TIER_HOST: "host",
    worker_pb2.CACHE_TIER_STORAGE: "storage",
}


def events_of(message: worker_pb2.ConnectResponse) -> Iterator[CacheEvent]:
    """Return the events of a message. What a later version of workers tells is left out, and seen as a gap."""
    for event in message.cache_events:
        change, tier = _CHANGES.get(event.change), _TIERS.get(event.tier)
        if change is not None and tier is not None:
            yield CacheEvent(event.seq, change, tier, event.names)


def holdings_of(snapshot: worker_pb2.CacheSnapshot) -> list[tuple[Tier, bytes]]:
    return [(_TIERS[each.tier], each.names) for each in snapshot.holdings if each.tier in _TIERS]


def digest_of(digest: worker_pb2.CacheDigest) -> CacheDigest:
    return CacheDigest(digest.seq, _tier_digest(digest.device), _tier_digest(digest.host))


def _tier_digest(digest: worker_pb2.TierDigest) -> TierDigest:
    return TierDigest(digest.num_pages, int.from_bytes(digest.sum, "little"))
