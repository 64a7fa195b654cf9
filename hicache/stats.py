"""Figures of the tiers below the device, as values."""

from collections import deque
from dataclasses import dataclass
from typing import Final

_MOST_KEPT: Final = 4096
_KEPT: Final = 0.8


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


@dataclass(frozen=True, slots=True)
class TierSpeeds:
    """How fast tokens come to where they are needed, as measured of late; 0: not known yet."""

    load_tokens_per_s: float = 0.0  # from the host to the device, without what each load takes besides
    fetch_tokens_per_s: float = 0.0  # from storage to the host


class Speed:
    """Tokens per second over the latest pieces of work: each new one takes a fifth of the weight of all before it."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def add(self, num_tokens: int, seconds: float) -> None:
        if num_tokens > 0 and seconds > 0:
            self._tokens = self._tokens * _KEPT + num_tokens
            self._seconds = self._seconds * _KEPT + seconds

    @property
    def tokens_per_s(self) -> float:
        """0 before the first one."""
        return self._tokens / self._seconds if self._seconds else 0.0


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
