"""Figures of the tiers below the device, as values."""

from collections import deque
from dataclasses import dataclass
from typing import Final

_MOST_KEPT: Final = 4096


@dataclass(frozen=True, slots=True)
class TierStats:
    """A snapshot of what lies below the device, and what was moved since the start."""

    host_slots: int
    host_free_slots: int
    host_cached_slots: int  # of all nodes, those being mirrored included
    settled_slots: int  # on the device, and free to leave it without loss
    flying_tokens: int  # on their way to the host
    pending: int  # copies, saves and fetches that have not ended
    moved_tokens: int  # left the device and stayed on the host
    lost_tokens: int  # left the device and were nowhere else
    host_lost_tokens: int  # left the host and were nowhere else but, maybe, in storage
    mirrored_tokens: int
    loaded_tokens: int
    mirror_failures: int
    load_failures: int
    stalls: int  # copies given up because they took too long
    declined_loads: int  # hits on the host that were cheaper to compute again
    sought_tokens: int  # that storage was asked for, behind what device and host have
    fetched_tokens: int
    saved_pages: int
    failed_saves: int
    skipped_saves: int  # pages not saved because too many wait for it
    failed_fetches: int
    late_fetches: int
    fetch_reserved_bytes: int


@dataclass(frozen=True, slots=True)
class CopyDurations:
    """How long single copies took that have ended, in seconds, without waiting for their turn."""

    mirrors: tuple[float, ...] = ()  # that were done, as are load backs
    load_backs: tuple[float, ...] = ()
    prefetches: tuple[float, ...] = ()  # look-ups and reads that the store answered, or began to
    saves: tuple[float, ...] = ()  # batches that the store took, or began to

    def __bool__(self) -> bool:
        return bool(self.mirrors or self.load_backs or self.prefetches or self.saves)


class Durations:
    """What has ended since somebody last took it. Where nobody does, the last ones are kept, and no more."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_MOST_KEPT)

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def take(self) -> tuple[float, ...]:
        """Return all there are, which are no longer here then."""
        if not self._seconds:
            return ()
        taken = tuple(self._seconds)
        self._seconds.clear()
        return taken
