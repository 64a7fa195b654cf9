"""Which sequences are out of time. Knows no clock."""

from collections.abc import Iterator
from heapq import heappop, heappush

from worker.engine.sequence import Sequence


class Deadlines:
    """The deadlines of living sequences, earliest first. Those of ended ones are skipped when they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []

    def watch(self, sequence: Sequence) -> None:
        if sequence.request.deadline is not None:
            heappush(self._heap, (sequence.request.deadline, sequence.order, sequence))

    def expired(self, now: float) -> Iterator[Sequence]:
        """Yield the living sequences whose deadline is `now` or earlier; each once."""
        while (earliest := self.earliest()) is not None and earliest <= now:
            yield heappop(self._heap)[2]

    def earliest(self) -> float | None:
        """Return the earliest deadline of a living sequence."""
        while self._heap and self._heap[0][2].ended:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None
