"""When to leave a store alone that was away. Decides from times it is told; knows no store and no clock."""

from typing import Final

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


class Circuit:
    """Closed while the store answers. A failure opens it for a pause that doubles with each failure in a row.

    After the pause the next task is let through: it closes the circuit, or opens it again for longer.
    """

    def __init__(self, first_pause_s: float = FIRST_PAUSE_S, longest_pause_s: float = LONGEST_PAUSE_S) -> None:
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._next_pause_s = first_pause_s
        self._open_until = float("-inf")
        self.reason = ""

    def wait_s(self, now: float) -> float:
        """Return for how long the store is to be left alone; 0 when it may be asked."""
        return max(0.0, self._open_until - now)

    def succeeded(self) -> None:
        self._next_pause_s = self._first_pause_s
        self._open_until = float("-inf")
        self.reason = ""

    def failed(self, now: float, reason: str) -> None:
        self._open_until = now + self._next_pause_s
        self._next_pause_s = min(2 * self._next_pause_s, self._longest_pause_s)
        self.reason = reason
