"""Which sequences are out of time. Knows no clock."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from worker.engine.sequence import Sequence

_MIN_DEAD = 64  # ended sequences that may lie in the heap whatever its size


class Deadlines:
    """The deadlines of living sequences, earliest first.

    Ended ones are skipped when they come up. Invariant: they are never more than the living ones, or `_MIN_DEAD`, so
    that a sequence with a distant deadline does not outlive its end by much.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        self._num_dead = 0

    def __len__(self) -> int:
        """Sequences held, ended ones included."""
        return len(self._heap)

    def watch(self, sequence: Sequence) -> None:
        if sequence.request.deadline is not None:
            heappush(self._heap, (sequence.request.deadline, sequence.order, sequence))

    def ended(self, sequence: Sequence) -> None:
        """A sequence that was watched has just ended, expired or not."""
        if sequence.request.deadline is None:
            return
        self._num_dead += 1
        if self._num_dead > max(_MIN_DEAD, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if not entry[2].ended]
            heapify(self._heap)
            self._num_dead = 0

    def expired(self, now: float) -> Iterator[Sequence]:
        """Yield the living sequences whose deadline is `now` or earlier; each once. They are to end."""
        while (earliest := self.earliest()) is not None and earliest <= now:
            yield self._heap[0][2]

    def earliest(self) -> float | None:
        """Return the earliest deadline of a living sequence."""
        while self._heap and self._heap[0][2].ended:
            heappop(self._heap)
            self._num_dead -= 1
        return self._heap[0][0] if self._heap else None
