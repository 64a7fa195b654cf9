"""When a completion did what: recorded as it happens, and told as a value when it has ended.

    QUEUE ─▶ MATCH ─▶ LOAD ─▶ PREFILL ─▶ DECODE        PAUSE comes after any of the last three, and MATCH after it
                  └────────────▶                       a branch is born into QUEUE, with its first token

Knows neither clock nor cache: moments are passed in, in seconds, monotonic.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

MAX_INTERVALS = 96
"""Of one completion: who is paused again and again takes no memory for it. What is beyond is in the sums."""


class Phase(Enum):
    QUEUE = "queue"  # waits for its turn, and for what storage brings
    MATCH = "match"  # its step is being decided: the cache is asked for its prefix, slots are reserved
    LOAD = "load"  # runs, and waits for a copy from the host
    PREFILL = "prefill"  # computes its prompt
    DECODE = "decode"  # has its first token; computes what it lost in a pause, too
    PAUSE = "pause"  # gave its slots up, and waits for its turn


@dataclass(frozen=True, slots=True)
class PhaseInterval:
    """[start, end) of a phase."""

    phase: Phase
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A completion from its beginning to its end.

    The phases follow each other without gaps: the sum of `seconds` is `ended_at - began_at`. `intervals` are the first
    ones, all of them if `num_omitted` is 0.
    """

    began_at: float  # submitted; a branch is born with the first token of its leader
    ended_at: float
    intervals: tuple[PhaseInterval, ...]
    seconds: Mapping[Phase, float]
    first_token_at: float | None
    prefetched_at: float | None  # until then it waited for storage, in its first QUEUE; None: for nothing
    num_pauses: int
    num_tokens: int
    num_omitted: int = 0
    is_last: bool = True  # of its request's completions: none is alive any more


class Course:
    """The phases of one completion so far. Moments that go backwards count as the one before."""

    __slots__ = (
        "_at", "_began_at", "_first_token_at", "_intervals", "_num_omitted", "_phase", "_prefetched_at", "_seconds",
    )  # fmt: skip

    def __init__(self, began_at: float) -> None:
        self._began_at = began_at
        self._at = began_at  # of the last change
        self._phase: Phase | None = Phase.QUEUE  # None: ended
        self._intervals: list[PhaseInterval] = []
        self._seconds: dict[Phase, float] = {}
        self._first_token_at: float | None = None
        self._prefetched_at: float | None = None
        self._num_omitted = 0

    def prefetched(self, now: float) -> None:
        """What storage was asked for is here, or is not waited for any more."""
        self._prefetched_at = max(now, self._began_at)

    def started(self, now: float) -> None:
        """It holds a lease from the step on that is decided now."""
        self._enter(Phase.MATCH, now)

    def loads(self, now: float) -> None:
        """What it was found to have on the host is on its way."""
        self._enter(Phase.LOAD, now)

    def computes(self, now: float) -> None:
        """It can compute."""
        self._enter(Phase.PREFILL if self._first_token_at is None else Phase.DECODE, now)

    def first_token(self, now: float) -> None:
        """It got one in a forward pass, unless it was born with one."""
        if self._first_token_at is not None:
            return
        self._enter(Phase.DECODE, now)
        self._first_token_at = self._at

    def born(self, now: float) -> None:
        """It begins with a first token, and waits for its turn."""
        self._first_token_at = max(now, self._began_at)

    def paused(self, now: float) -> None:
        self._enter(Phase.PAUSE, now)

    def ended(self, now: float) -> None:
        """Nothing comes after it; ending twice is harmless."""
        self._enter(None, now)

    def timeline(self, num_pauses: int, num_tokens: int, *, is_last: bool) -> Timeline:
        """Return what was recorded, up to the end or the last change."""
        return Timeline(
            self._began_at,
            self._at,
            tuple(self._intervals),
            dict(self._seconds),
            self._first_token_at,
            self._prefetched_at,
            num_pauses,
            num_tokens,
            self._num_omitted,
            is_last,
        )

    def _enter(self, phase: Phase | None, now: float) -> None:
        over = self._phase
        if over is phase or over is None:
            return
        now = max(now, self._at)
        self._seconds[over] = self._seconds.get(over, 0.0) + (now - self._at)
        if len(self._intervals) < MAX_INTERVALS:
            self._intervals.append(PhaseInterval(over, self._at, now))
        else:
            self._num_omitted += 1
        self._phase, self._at = phase, now
