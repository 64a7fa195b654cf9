"""What one link has yet to tell its gateway of the cache: parts of a snapshot, events, a digest. Knows no engine.

    what happens         what waits then
    ------------         ---------------
    events               they, behind the others; if these are too many, they alone, or nothing: the gateway sees a gap
    a snapshot at S      its parts, instead of everything: all events so far are among what it holds
    a message is made    what is left: it takes the next part, or, when there is none, all events

So what a gateway reads is in order: after the last part of a snapshot at S comes no event before S + 1, and none is
missing unless the link says so by a gap. A part 0 begins anew, whatever came before. A digest comes when nothing else
waits, so whoever has followed everything has just seen its `seq`.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from radixgate.v1 import worker_pb2

MAX_EVENTS: Final = 4_096
MAX_NAME_BYTES: Final = 1 << 20


class FeedObserver(Protocol):
    """Counts what gateways are told of the cache."""

    def cache_events_sent(self, number: int) -> None: ...

    def cache_events_dropped(self, number: int) -> None:
        """A gateway reads too slowly to be told of these."""
        ...

    def cache_snapshot_sent(self) -> None: ...


class NullFeedObserver:
    """For those who count nothing."""

    def cache_events_sent(self, number: int) -> None: ...

    def cache_events_dropped(self, number: int) -> None: ...

    def cache_snapshot_sent(self) -> None: ...


class CacheOutbox:
    """Invariant: at most `max_events` events with `max_name_bytes` of names wait, and the parts of one snapshot."""

    def __init__(
        self, observer: FeedObserver, *, max_events: int = MAX_EVENTS, max_name_bytes: int = MAX_NAME_BYTES
    ) -> None:
        self._observer = observer
        self._max_events = max_events
        self._max_name_bytes = max_name_bytes
        self._parts: deque[worker_pb2.CacheSnapshot] = deque()
        self._events: list[worker_pb2.CacheEvent] = []
        self._name_bytes = 0
        self._digest: worker_pb2.CacheDigest | None = None  # behind the last event
        self._told_seq: int | None = None  # of the last digest that was told

    @property
    def waits(self) -> bool:
        """Whether there is something to tell, a digest aside."""
        return bool(self._parts or self._events)

    def changed(self, events: Sequence[worker_pb2.CacheEvent], digest: worker_pb2.CacheDigest) -> None:
        """The next events, and what the tiers hold behind them."""
        self._digest = digest
        num_bytes = sum([len(event.names) for event in events])
        if not self._fits(len(events), num_bytes):
            self._observer.cache_events_dropped(len(self._events))
            self._events, self._name_bytes = [], 0
        if not self._fits(len(events), num_bytes):
            self._observer.cache_events_dropped(len(events))
            return
        self._events.extend(events)
        self._name_bytes += num_bytes

    def restart(self, parts: Sequence[worker_pb2.CacheSnapshot]) -> None:
        """The gateway is told all that the tiers hold behind the last event so far."""
        self._parts = deque(parts)
        self._events, self._name_bytes = [], 0
        self._told_seq = None

    def fill(self, message: worker_pb2.ConnectResponse) -> None:
        """Put what comes next into a message."""
        if self._parts:
            message.snapshot.CopyFrom(self._parts.popleft())
            if not self._parts:
                self._observer.cache_snapshot_sent()
            return
        if self._events:
            message.cache_events.extend(self._events)
            self._observer.cache_events_sent(len(self._events))
            self._events, self._name_bytes = [], 0

    def fill_digest(self, message: worker_pb2.ConnectResponse) -> None:
        """Put the digest into a message that was filled, if it says something new and nothing waits."""
        if self._digest is None or self._digest.seq == self._told_seq or self.waits:
            return
        message.digest.CopyFrom(self._digest)
        self._told_seq = self._digest.seq

    def _fits(self, num_events: int, num_bytes: int) -> bool:
        return (
            len(self._events) + num_events <= self._max_events and self._name_bytes + num_bytes <= self._max_name_bytes
        )
