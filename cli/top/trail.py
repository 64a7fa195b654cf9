"""How much counters grew: what one endpoint showed over the last while, and what happened between two looks.

A counter begins at 0 with its process. One that fell, or any in a process that started anew, has grown by all that it
shows. Invariant: growth is never negative, and over any looks without a restart it adds up to the difference.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cli.top.names import STARTED
from cli.top.samples import Labels, Samples, label

Growth = Mapping[str, Mapping[Labels, float]]

_RESTART_S = 1.0  # start times that differ by less are one: clocks are rounded


@dataclass(frozen=True, slots=True)
class Step:
    """What happened between two looks at an endpoint."""

    at: float  # of the second look
    seconds: float
    growth: Growth  # of what grew


def grown(before: Samples, now: Samples) -> Growth:
    """Return by how much each counter grew from one look to the next; those that did not are left out."""
    restarted = _restarted(before, now)
    growth: dict[str, dict[Labels, float]] = {}
    for name, family in now.counters():
        known = {} if restarted else before.families.get(name, {})
        rises: dict[Labels, float] = {}
        for labels, value in family.items():
            last = known.get(labels, 0.0)
            rise = value - last if value >= last else value
            if rise > 0:
                rises[labels] = rise
        if rises:
            growth[name] = rises
    return growth


def _restarted(before: Samples, now: Samples) -> bool:
    then, started = before.value(STARTED), now.value(STARTED)
    return then is not None and started is not None and abs(started - then) > _RESTART_S


@dataclass(frozen=True, slots=True)
class Window:
    """Growth over some time, of one endpoint. Of no time, nothing is known: rates are None, and not 0."""

    seconds: float
    growth: Growth
    latest: Samples = field(default_factory=Samples)

    @classmethod
    def over(cls, steps: Iterable[Step], latest: Samples) -> "Window":
        seconds = 0.0
        growth: dict[str, dict[Labels, float]] = {}
        for step in steps:
            seconds += step.seconds
            for name, rises in step.growth.items():
                family = growth.setdefault(name, {})
                for labels, rise in rises.items():
                    family[labels] = family.get(labels, 0.0) + rise
        return cls(seconds, growth, latest)

    def total(self, name: str, **where: str) -> float:
        return sum(
            rise
            for labels, rise in self.growth.get(name, {}).items()
            if all(label(labels, key) == wanted for key, wanted in where.items())
        )

    def rate(self, name: str, **where: str) -> float | None:
        """Return the growth per second."""
        return self.total(name, **where) / self.seconds if self.seconds else None

    def totals(self, name: str, *by: str, **where: str) -> dict[tuple[str, ...], float]:
        """Return the growth by some labels, of the series that match."""
        sums: dict[tuple[str, ...], float] = {}
        for labels, rise in self.growth.get(name, {}).items():
            if all(label(labels, key) == wanted for key, wanted in where.items()):
                key = tuple(label(labels, each) for each in by)
                sums[key] = sums.get(key, 0.0) + rise
        return sums

    def mean(self, histogram: str) -> float | None:
        """Return the mean of what a histogram observed, None where it observed nothing."""
        count = self.total(f"{histogram}_count")
        return self.total(f"{histogram}_sum") / count if count else None

    def buckets(self, histogram: str, **where: str) -> dict[float, float]:
        """Return what was observed up to each bound, cumulated, as histograms count."""
        name = f"{histogram}_bucket"
        bounds = {label(labels, "le"): 0.0 for labels in self.latest.families.get(name, {})}
        grew = {le: rise for (le,), rise in self.totals(name, "le", **where).items()}
        return {_bound(le): rise for le, rise in (bounds | grew).items()}


def quantile(buckets: Mapping[float, float], q: float) -> float | None:
    """Return the q-quantile within cumulated buckets, as Prometheus estimates it; None where nothing was observed.

    Beyond the last finite bound nothing is known: that bound is returned.
    """
    count = buckets.get(math.inf, 0.0)
    if not count:
        return None
    rank, low, below = q * count, 0.0, 0.0
    for bound, upto in sorted(buckets.items()):
        if math.isinf(bound):
            break
        if upto >= rank and upto > below:
            return low + (bound - low) * (rank - below) / (upto - below)
        low, below = bound, upto
    return low


def _bound(le: str) -> float:
    try:
        return float(le)
    except ValueError:
        return math.inf


@dataclass(slots=True)
class Trail:
    """What one endpoint showed: the last look, and the steps that lie within `window_s` before it.

    Only looks that succeeded are in here. One that succeeds after a while makes a long step, so rates stay true.
    """

    window_s: float
    last: Samples | None = None
    at: float = 0.0
    steps: deque[Step] = field(default_factory=deque)

    def look(self, at: float, samples: Samples) -> Step | None:
        """Take in what was seen at `at`; returns the step to it, None at the first look or if it is no later."""
        if self.last is not None and at <= self.at:
            return None
        step = None
        if self.last is not None:
            step = Step(at, at - self.at, grown(self.last, samples))
            self.steps.append(step)
        self.last, self.at = samples, at
        self.forget(at)
        return step

    def forget(self, now: float) -> None:
        """Drop what ended before the window; `now` is the time of another look, or of one that failed."""
        while self.steps and self.steps[0].at <= now - self.window_s:
            self.steps.popleft()

    def window(self) -> Window:
        return Window.over(self.steps, self.last or Samples())
