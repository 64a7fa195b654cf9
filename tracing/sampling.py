"""Which requests are recorded.

Callers choose their trace ids and flags, so neither decides alone: the share is drawn at random, whatever the ids, and
what the flag adds is bounded for each tenant. A flag that says no hides nothing from the operator's share.
"""

import random
from collections import OrderedDict
from collections.abc import Callable

STRANGERS_PER_MINUTE = 60
"""Recorded calls of callers that nobody knows: they must not crowd out tenants."""

_MAX_NAMES = 10_000


class Budget:
    """So many a minute for each name, all of a minute at once at most."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what, as of when; the longest ago first

    def take(self, name: str, now: float) -> bool:
        """Take one, if there is one."""
        left, at = self._left.pop(name, (float(self._per_minute), now))
        left = min(float(self._per_minute), left + (now - at) * self._per_minute / 60.0)
        taken = left >= 1.0
        self._left[name] = (left - taken, now)
        if len(self._left) > _MAX_NAMES:
            self._left.popitem(last=False)
        return taken


class Sampler:
    """Decides about each request once its caller is known, or turns out to be nobody."""

    def __init__(self, ratio: float, asked_per_minute: int, draw: Callable[[], float] = random.random) -> None:
        """`draw` returns numbers in [0, 1)."""
        self._ratio = ratio
        self._draw = draw
        self._asked = Budget(asked_per_minute)
        self._strangers = Budget(STRANGERS_PER_MINUTE)

    def takes(self, caller: str, *, asked: bool, now: float) -> bool:
        """Whether to record a request of a caller, who `asked` for it or not. `now` in seconds, monotonic."""
        return self._draw() < self._ratio or (asked and self._asked.take(caller, now))

    def takes_stranger(self, now: float) -> bool:
        """Whether to record a call whose caller is unknown, whatever it asked for."""
        return self._draw() < self._ratio and self._strangers.take("", now)
