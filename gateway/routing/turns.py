"""Who was chosen longest ago. It breaks ties, so that no worker is favoured for its place in a list."""


class Turns:
    """Invariant: `_last` has a worker that is known once; those of whom nothing is known were chosen longest ago."""

    def __init__(self) -> None:
        self._turn = 0
        self._last: dict[str, int] = {}

    def last(self, worker: str) -> int:
        """Return a number that is smaller, the longer ago a worker was chosen."""
        return self._last.get(worker, 0)

    def took(self, worker: str, num_candidates: int) -> None:
        self._turn += 1
        self._last[worker] = self._turn
        if len(self._last) > 64 + 4 * num_candidates:  # workers come and go for as long as a gateway runs
            for oldest in sorted(self._last, key=self._last.__getitem__)[: len(self._last) // 2]:
                del self._last[oldest]
