"""A ratio over the last so-many seconds of two running sums. Knows no Prometheus; time is passed in."""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class _Bucket:
    number: int  # time // bucket_s
    part: int
    whole: int


class SlidingRatio:
    """sum(part) / sum(whole) over the events of the last `window_s` seconds, to the grain of a bucket.

    Invariant: the two sums equal the sums over the buckets held. Memory is bounded by the number of buckets in the
    window, whatever the number of events.
    """

    def __init__(self, window_s: float = 60.0, bucket_s: float = 1.0) -> None:
        if not 0 < bucket_s <= window_s:
            raise ValueError(f"bucket_s ({bucket_s}) must be above 0 and at most window_s ({window_s})")
        self._bucket_s = bucket_s
        self._num_buckets = round(window_s / bucket_s)
        self._buckets: deque[_Bucket] = deque()
        self._part = 0
        self._whole = 0

    def add(self, part: int, whole: int, *, now: float) -> None:
        """Count one event. `now` never runs backwards."""
        number = self._expire(now)
        if not self._buckets or self._buckets[-1].number != number:
            self._buckets.append(_Bucket(number, 0, 0))
        self._buckets[-1].part += part
        self._buckets[-1].whole += whole
        self._part += part
        self._whole += whole

    def value(self, *, now: float) -> float | None:
        """Return the ratio, or None when nothing happened in the window: no traffic is not a ratio of 0."""
        self._expire(now)
        return self._part / self._whole if self._whole else None

    def _expire(self, now: float) -> int:
        number = int(now // self._bucket_s)
        while self._buckets and self._buckets[0].number <= number - self._num_buckets:
            old = self._buckets.popleft()
            self._part -= old.part
            self._whole -= old.whole
        return number
