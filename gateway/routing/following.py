"""Follows what one worker tells of its cache, and knows when it has missed something. No connection, no clock.

    told                                    done
    event, the next one                     applied
    event, seen before                      nothing
    event, one or more later                applied as well as can be; a snapshot is wanted
    digest of the same event, the same      nothing: what is known is what is there
    digest of the same event, another one   a snapshot is wanted
    digest of a later event                 events were lost at the end: a snapshot is wanted
    snapshot                                replaces all; what was told since it was asked for comes on top

The digest is kept over what was told, whether the index has room for it or not. So it proves that nothing was missed,
also where pages were forgotten.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from gateway.routing.index import DEVICE, HOST, Holder
from hicache.keys import PAGE_HASH_BYTES

Tier = Literal["device", "host", "storage"]
Change = Literal["stored", "removed", "moved"]

ANSWER_S: Final = 5.0
"""A snapshot of which nothing has come for this time is asked for again."""

MAX_PAUSE_S: Final = 30.0
"""Between attempts that nobody answers, which are made less and less often."""

SNAPSHOT_S_PER_PAGE: Final = 1e-5
"""Rest after a snapshot, for each page in it: taking it costs about a tenth of that, so a link that loses one message
after the other takes a tenth of the loop at most."""

_MAX_BUFFERED: Final = 65_536  # pages of events while a snapshot is on its way; more than that, and it comes too late
_SUM_MASK: Final = (1 << 8 * PAGE_HASH_BYTES) - 1
_PLACE: Final[Mapping[Tier, int]] = {"device": DEVICE, "host": HOST}


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """One change. For "moved", `tier` is where the pages went; it had them before. `packed`: names of 16 bytes each."""

    seq: int
    change: Change
    tier: Tier
    packed: bytes


@dataclass(frozen=True, slots=True)
class TierDigest:
    """How many pages a tier has, and the sum of their names; what is there twice counts twice."""

    num_pages: int = 0
    total: int = 0

    def plus(self, packed: bytes, sign: int) -> "TierDigest":
        return TierDigest(
            self.num_pages + sign * (len(packed) // PAGE_HASH_BYTES), self.total + sign * _sum(packed) & _SUM_MASK
        )


@dataclass(frozen=True, slots=True)
class CacheDigest:
    """What device and host had after event `seq`."""

    seq: int
    device: TierDigest = TierDigest()
    host: TierDigest = TierDigest()

    @property
    def is_empty(self) -> bool:
        return self.device.num_pages == self.host.num_pages == 0


class FollowingObserver(Protocol):
    """Hears of one worker."""

    def cache_events_applied(self, worker: str, events: int) -> None: ...

    def cache_events_missed(self, worker: str) -> None: ...

    def cache_snapshot_taken(self, worker: str) -> None: ...

    def cache_digest_compared(self, worker: str, agrees: bool) -> None: ...


class Following:
    """What one worker has told since its connection began.

    Invariant: while `in_step`, the digest is that of everything that the worker's tiers had after event `seq`.
    """

    def __init__(self, worker: str, holder: Holder, store: Holder | None, observer: FollowingObserver) -> None:
        """`store` holds what lies in the worker's storage, and that of all workers with the same one."""
        self.seq: int | None = None  # of the last event, None: none is known yet
        self.in_step = False
        self._worker = worker
        self._holder = holder
        self._store = store
        self._observer = observer
        self._tallies = {"device": TierDigest(), "host": TierDigest()}
        self._missed = False
        self._asked_at: float | None = None
        self._not_before = 0.0
        self._unanswered = 0
        self._buffer: list[CacheEvent] = []
        self._buffered_pages = 0
        self._parts: list[tuple[Tier, bytes]] = []
        self._next_part = 0
        self._snapshot_seq = 0

    @property
    def digest(self) -> CacheDigest:
        return CacheDigest(self.seq or 0, self._tallies["device"], self._tallies["host"])

    # ------------------------------------------------------------------------------------------------------ events

    def events(self, events: Iterable[CacheEvent]) -> None:
        """Changes, in the order in which they were told."""
        applied = 0
        for event in events:
            if self.seq is not None and event.seq <= self.seq:
                continue
            if self.seq is None and event.seq == 1:
                self.in_step = True
            elif self.seq is None or event.seq != self.seq + 1:
                self._miss()
            self.seq = event.seq
            self._apply(event)
            if self._asked_at is not None:
                self._keep(event)
            applied += 1
        if applied:
            self._observer.cache_events_applied(self._worker, applied)

    def _apply(self, event: CacheEvent) -> None:
        names, holder = split_names(event.packed), self._holder
        if event.tier == "storage":
            if self._store is not None and event.change == "stored":
                self._store.assume(names)
            return
        if event.change == "stored":
            holder.add(_PLACE[event.tier], names)
            if event.tier == "device":
                holder.confirm(names)
            self._count(event.tier, event.packed, 1)
        else:
            left: Tier = event.tier if event.change == "removed" else "device"
            holder.remove(_PLACE[left], names)
            self._count(left, event.packed, -1)

    def _count(self, tier: Tier, packed: bytes, sign: int) -> None:
        self._tallies[tier] = self._tallies[tier].plus(packed, sign)

    def _keep(self, event: CacheEvent) -> None:
        self._buffer.append(event)
        self._buffered_pages += len(event.packed) // PAGE_HASH_BYTES
        if self._buffered_pages > _MAX_BUFFERED:
            # The snapshot that is on its way will not join on to what is told from here on.
            self._buffer, self._buffered_pages = [], 0

    # ----------------------------------------------------------------------------------------------------- digests

    def compare(self, told: CacheDigest) -> None:
        """Look at what is known beside what the worker says."""
        if self.seq is None:
            self.seq = told.seq
            self.in_step, self._missed = told.is_empty, not told.is_empty
        if not self.in_step or told.seq < self.seq:
            return
        if told.seq > self.seq:
            self._miss()
            return
        agrees = told == self.digest
        self._observer.cache_digest_compared(self._worker, agrees)
        if not agrees:
            self.in_step, self._missed = False, True

    def _miss(self) -> None:
        # Who has just connected has missed nothing that was told to it.
        if self.seq is not None:
            self._observer.cache_events_missed(self._worker)
        self.in_step, self._missed = False, True

    # --------------------------------------------------------------------------------------------------- snapshots

    def wants_snapshot(self, now: float) -> bool:
        """Whether to ask for one now: at most one is on its way, and after each there is a rest."""
        if not self._missed or now < self._not_before:
            return False
        if self._asked_at is not None:
            if now < self._asked_at + ANSWER_S:
                return False
            self._unanswered += 1
            self._not_before = now + min(MAX_PAUSE_S, 2.0**self._unanswered)
        self._asked_at = now
        self._buffer, self._buffered_pages = [], 0
        self._parts, self._next_part = [], 0
        return True

    def snapshot(self, seq: int, part: int, last: bool, holdings: Sequence[tuple[Tier, bytes]], now: float) -> None:
        """A part of what the tiers had after event `seq`: tiers, and names of pages. One out of turn is dropped."""
        if part == 0:
            self._parts, self._next_part, self._snapshot_seq = [], 0, seq
        if self._asked_at is None or part != self._next_part or seq != self._snapshot_seq:
            return
        self._next_part += 1
        self._parts.extend(holdings)
        self._asked_at = now  # a long one that is coming is not asked for once more: it would begin anew
        if last:
            self._take(seq, now)

    def _take(self, seq: int, now: float) -> None:
        seen = self.seq or 0
        for tier in ("device", "host"):
            packed = b"".join(names for where, names in self._parts if where == tier)
            names = split_names(packed)
            self._tallies[tier] = TierDigest().plus(packed, 1)
            self._holder.replace(_PLACE[tier], Counter(names))
            if tier == "device":
                self._holder.confirm(names)
        num_pages = sum(tally.num_pages for tally in self._tallies.values())
        self._parts, buffer, self._buffer, self._buffered_pages = [], self._buffer, [], 0
        self._asked_at, self._unanswered = None, 0
        self._not_before = now + SNAPSHOT_S_PER_PAGE * num_pages
        self.seq, self.in_step, self._missed = seq, True, False
        for event in buffer:
            if event.seq > self.seq:
                if event.seq != self.seq + 1:
                    self._miss()
                self.seq = event.seq
                self._apply(event)
        if self.seq < seen:  # it is older than what was told before it was asked for
            self.seq = seen
            self._miss()
        self._observer.cache_snapshot_taken(self._worker)


def split_names(packed: bytes) -> list[bytes]:
    return [packed[start : start + PAGE_HASH_BYTES] for start in range(0, len(packed), PAGE_HASH_BYTES)]


def _sum(packed: bytes) -> int:
    halves: tuple[int, ...] = struct.unpack(f"<{len(packed) // 8}Q", packed)
    return sum(halves[::2]) + (sum(halves[1::2]) << 64)
