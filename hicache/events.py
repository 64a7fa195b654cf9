"""What each tier holds, told to others page by page: stored, removed, moved, in order, with a snapshot to start from.

    reader                                  log
    ------                                  ---
    since(last seq it has seen)    ->       the events behind it, or None: it missed some
    None: snapshot, replace all, go on from the snapshot's seq

Pages are called what `keys.page_hashes` calls them, so a reader that knows a request's key knows which of its pages are
where. The namespace travels beside the names, and is part of each. A copy is told of when it is done.

A reader counts: a page is there until it was removed as often as it was stored. What was dropped is removed bit by bit,
and may be stored again meanwhile; a page that straddles a barrier may lie behind several of them.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from hicache.keys import PAGE_HASH_BYTES, Namespace
from hicache.radix.naming import PageNames
from hicache.radix.node import Node
from hicache.radix.watch import Tier


class EventKind(Enum):
    STORED = "stored"  # the tier holds the pages now
    REMOVED = "removed"  # the tier holds them no longer
    MOVED = "moved"  # they left the device; the host holds them


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """One change. `seq` counts from 1 without gaps. For MOVED, `tier` is where the pages went."""

    seq: int
    kind: EventKind
    tier: Tier
    namespace: Namespace
    names: tuple[bytes, ...]  # 16 bytes each, in the order of their path


@dataclass(frozen=True, slots=True)
class Holding:
    """The pages of one namespace in one tier."""

    tier: Tier
    namespace: Namespace
    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that the tiers hold after event `seq`."""

    seq: int
    holdings: tuple[Holding, ...]


class EventLog:
    """The latest changes, as many as `capacity`. Owned by the cache's thread; `on_event` is called on it."""

    def __init__(
        self, names: PageNames, *, capacity: int = 65_536, on_event: Callable[[CacheEvent], None] | None = None
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.names = names
        self._events: deque[CacheEvent] = deque(maxlen=capacity)
        self._on_event = on_event
        self.seq = 0  # of the latest event

    def since(self, seq: int) -> Sequence[CacheEvent] | None:
        """Return the events behind `seq`; None if they are not all here, or `seq` is not of this log."""
        missing = self.seq - seq
        if missing < 0 or missing > len(self._events):
            return None
        return list(self._events)[len(self._events) - missing :]

    def snapshot(self, nodes: Iterable[Node]) -> Snapshot:
        """Return what `nodes`, all those in reach or dropped and not freed yet, hold now."""
        held: dict[tuple[Tier, Namespace], list[bytes]] = {}
        for node in nodes:
            names = self._page_names(node, node.depth - len(node.key)) if node.key else ()
            if not names or node.space is None:
                continue
            if node.value:
                held.setdefault(("device", node.space.namespace), []).extend(names)
            if node.mirrored:
                held.setdefault(("host", node.space.namespace), []).extend(names)
        holdings = tuple(Holding(tier, namespace, tuple(names)) for (tier, namespace), names in held.items())
        return Snapshot(self.seq, holdings)

    def stored(self, node: Node, begin: int, tier: Tier) -> None:
        self._append(EventKind.STORED, node, begin, tier)

    def removed(self, node: Node, begin: int, tier: Tier) -> None:
        self._append(EventKind.REMOVED, node, begin, tier)

    def moved(self, node: Node, begin: int) -> None:
        self._append(EventKind.MOVED, node, begin, "host")

    def _append(self, kind: EventKind, node: Node, begin: int, tier: Tier) -> None:
        names = self._page_names(node, begin)
        if not names:
            return
        assert node.space is not None
        self.seq += 1
        event = CacheEvent(self.seq, kind, tier, node.space.namespace, names)
        self._events.append(event)
        if self._on_event is not None:
            self._on_event(event)

    def _page_names(self, node: Node, begin: int) -> tuple[bytes, ...]:
        names = self.names.between(node, begin, node.depth)
        return tuple(names[start : start + PAGE_HASH_BYTES] for start in range(0, len(names), PAGE_HASH_BYTES))
