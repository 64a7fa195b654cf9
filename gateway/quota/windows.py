"""What was admitted in the last minute, by second.

A bucket counts as a whole for as long as any moment of it is less than a minute ago: the current second and the 60
before it. So no span of 60 s, wherever it begins, has more in it than what is counted.
Times are seconds on any clock that does not go back.
"""

import math
from collections.abc import Mapping

WINDOW_S = 60
NEVER = -1.0


def opens_in(buckets: Mapping[int, int], now: float, amount: int, limit: int) -> float:
    """Return in how many seconds `amount` more fits under `limit` if nothing else happens: 0 for now, NEVER for never.

    `buckets` are amounts by second; those older than a minute are not counted.
    """
    if amount > limit:
        return NEVER
    oldest = math.floor(now) - WINDOW_S
    counted = sorted((second, used) for second, used in buckets.items() if second >= oldest)
    excess = sum(used for _, used in counted) + amount - limit
    for second, used in counted:
        if excess <= 0:
            break
        excess -= used
        if excess <= 0:
            return second + WINDOW_S + 1 - now
    return 0.0


class Window:
    """Amounts by second. Invariant: no bucket is negative."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}

    def opens_in(self, now: float, amount: int, limit: int) -> float:
        """See `opens_in` above."""
        self._forget(now)
        return opens_in(self._buckets, now, amount, limit)

    def total(self, now: float) -> int:
        self._forget(now)
        return sum(self._buckets.values())

    def charge(self, now: float, amount: int) -> None:
        second = math.floor(now)
        self._buckets[second] = self._buckets.get(second, 0) + amount

    def give_back(self, charged_at: float, amount: int) -> None:
        """Return what was charged then and not used. Without effect where it no longer counts."""
        second = math.floor(charged_at)
        if second in self._buckets:
            self._buckets[second] = max(0, self._buckets[second] - amount)

    def _forget(self, now: float) -> None:
        oldest = math.floor(now) - WINDOW_S
        for second in [second for second in self._buckets if second < oldest]:
            del self._buckets[second]
