"""What each tier holds, told to others page by page: stored, removed, moved, in order, with a snapshot to start from.

    reader                                  log
    ------                                  ---
    since(last seq it has seen)    ->       the events behind it, or None: it missed some
    None: snapshot, replace all, go on from the snapshot's seq
    digest                         ->       of what the tiers hold after an event: who has followed has the same

Pages are called what `keys.page_hashes` calls them, so a reader that knows a request's key knows which of its pages are
where. The namespace travels beside the names, and is part of each. A copy is told of when it is done.

A reader counts: a page is there until it was removed as often as it was stored. What was dropped is removed bit by bit,
and may be stored again meanwhile; a page that straddles a barrier may lie behind several of them.

Storage is told of once, when a page has been saved, and belongs neither to snapshots nor to digests: it is shared, and
others empty it.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from hicache.keys import PAGE_HASH_BYTES, Namespace
from hicache.radix.naming import PageNames
from hicache.radix.node import Node
from hicache.radix.watch import Tier

ToldTier = Tier | Literal["storage"]

_SUM_BITS: Final = 8 * PAGE_HASH_BYTES
_SUM_MASK: Final = (1 << _SUM_BITS) - 1


class EventKind(Enum):
    STORED = "stored"  # the tier holds the pages now
    REMOVED = "removed"  # the tier holds them no longer
    MOVED = "moved"  # they left the device; the host holds them


def split_names(packed: bytes) -> tuple[bytes, ...]:
    """Return names that lie one behind the other, each by itself."""
    return tuple([packed[start : start + PAGE_HASH_BYTES] for start in range(0, len(packed), PAGE_HASH_BYTES)])


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """One change. `seq` counts from 1 without gaps. For MOVED, `tier` is where the pages went.

    `packed` holds the names one behind the other, 16 bytes each, in the order of their path.
    """

    seq: int
    kind: EventKind
    tier: ToldTier
    namespace: Namespace
    packed: bytes

    @property
    def names(self) -> tuple[bytes, ...]:
        return split_names(self.packed)


@dataclass(frozen=True, slots=True)
class Holding:
    """The pages of one namespace in one tier; `packed` as in CacheEvent."""

    tier: Tier
    namespace: Namespace
    packed: bytes

    @property
    def names(self) -> tuple[bytes, ...]:
        return split_names(self.packed)


@dataclass(frozen=True, slots=True)
class TierDigest:
    """The pages of one tier in short: how many, and their names as little-endian numbers, added up modulo 2^128.

    A page that is there twice counts twice.
    """

    num_pages: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class CacheDigest:
    """What device and host hold after event `seq`, in short."""

    seq: int = 0
    device: TierDigest = TierDigest()
    host: TierDigest = TierDigest()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that device and host hold after event `seq`."""

    seq: int
    holdings: tuple[Holding, ...]

    def digest(self) -> CacheDigest:
        """Return what the log's digest was then."""
        tallies = {"device": Tally(), "host": Tally()}
        for holding in self.holdings:
            tallies[holding.tier].add(holding.packed)
        return CacheDigest(self.seq, tallies["device"].digest(), tallies["host"].digest())


class Tally:
    """A digest of pages that come and go. Costs O(1) for each."""

    __slots__ = ("_num_pages", "_total")

    def __init__(self) -> None:
        self._num_pages = 0
        self._total = 0

    def add(self, packed: bytes) -> None:
        self._num_pages += len(packed) // PAGE_HASH_BYTES
        self._total = (self._total + _sum(packed)) & _SUM_MASK

    def remove(self, packed: bytes) -> None:
        self._num_pages -= len(packed) // PAGE_HASH_BYTES
        self._total = (self._total - _sum(packed)) & _SUM_MASK

    def digest(self) -> TierDigest:
        return TierDigest(self._num_pages, self._total)


class EventLog:
    """The latest changes, as many as `capacity`. Owned by the cache's thread; `on_event` is called on it.

    Invariant: the digest is that of a snapshot made now.
    """

    def __init__(
        self, names: PageNames, *, capacity: int = 65_536, on_event: Callable[[CacheEvent], None] | None = None
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.names = names
        self._events: deque[CacheEvent] = deque(maxlen=capacity)
        self._on_event = on_event
        self._device, self._host = Tally(), Tally()
        self.seq = 0  # of the latest event

    def since(self, seq: int) -> Sequence[CacheEvent] | None:
        """Return the events behind `seq`; None if they are not all here, or `seq` is not of this log."""
        missing = self.seq - seq
        if missing < 0 or missing > len(self._events):
            return None
        return [self._events[index] for index in range(-missing, 0)]

    def digest(self) -> CacheDigest:
        """Return what device and host hold now, in short."""
        return CacheDigest(self.seq, self._device.digest(), self._host.digest())

    def snapshot(self, nodes: Iterable[Node]) -> Snapshot:
        """Return what `nodes`, all those in reach or dropped and not freed yet, hold now."""
        held: dict[tuple[Tier, Namespace], list[bytes]] = {}
        for node in nodes:
            packed = self.names.of(node) if node.key else b""
            if not packed or node.space is None:
                continue
            if node.value:
                held.setdefault(("device", node.space.namespace), []).append(packed)
            if node.mirrored:
                held.setdefault(("host", node.space.namespace), []).append(packed)
        holdings = tuple(Holding(tier, namespace, b"".join(pieces)) for (tier, namespace), pieces in held.items())
        return Snapshot(self.seq, holdings)

    # Changes, as the tree tells them

    def stored(self, node: Node, begin: int, tier: Tier) -> None:
        packed = self._packed(node, begin)
        self._tally(tier).add(packed)
        self._append(EventKind.STORED, tier, node, packed)

    def removed(self, node: Node, begin: int, tier: Tier) -> None:
        packed = self._packed(node, begin)
        self._tally(tier).remove(packed)
        self._append(EventKind.REMOVED, tier, node, packed)

    def moved(self, node: Node, begin: int) -> None:
        packed = self._packed(node, begin)
        self._device.remove(packed)  # the host has counted them since their copy was done
        self._append(EventKind.MOVED, "host", node, packed)

    def saved(self, namespace: Namespace, packed: bytes) -> None:
        """Storage holds pages now."""
        self._tell(EventKind.STORED, "storage", namespace, packed)

    def _packed(self, node: Node, begin: int) -> bytes:
        return self.names.between(node, begin, node.depth)

    def _tally(self, tier: Tier) -> Tally:
        return self._device if tier == "device" else self._host

    def _append(self, kind: EventKind, tier: Tier, node: Node, packed: bytes) -> None:
        assert node.space is not None
        self._tell(kind, tier, node.space.namespace, packed)

    def _tell(self, kind: EventKind, tier: ToldTier, namespace: Namespace, packed: bytes) -> None:
        if not packed:
            return
        self.seq += 1
        event = CacheEvent(self.seq, kind, tier, namespace, packed)
        self._events.append(event)
        if self._on_event is not None:
            self._on_event(event)


def _sum(packed: bytes) -> int:
    """Return the sum of names as little-endian numbers: of their lower and of their upper halves."""
    halves: tuple[int, ...] = struct.unpack(f"<{len(packed) // 8}Q", packed)
    return sum(halves[::2]) + (sum(halves[1::2]) << 64)
