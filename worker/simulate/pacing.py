"""Makes things last as long as they should, to the timer's grain in each case and exactly on average."""

import time
from collections.abc import Callable
from typing import Final

GRAIN_S: Final = 0.000_2
"""Nobody sleeps for less: it is owed, and slept with the next one."""

MOST_CREDIT_S: Final = 0.05
"""Of what sleeps took too long, for the next ones. Beyond it the machine is too busy, and that is not hidden."""


class Pacer:
    """Fills up the time that work should take by sleeping. For one thread.

    What a sleep takes too long makes the next one shorter. What the work itself takes too long is not made up for.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.clock: Final = clock
        self._sleep = sleep
        self._owed_s = 0.0  # below 0: slept too long by so much

    def fill(self, began_at: float, duration_s: float) -> None:
        """Return when `duration_s` are over since `began_at`, on this clock."""
        left_s = self._owed_s + duration_s - (self.clock() - began_at)
        if left_s <= GRAIN_S:
            self._owed_s = max(left_s, min(self._owed_s, 0.0))
            return
        asleep_at = self.clock()
        self._sleep(left_s)
        self._owed_s = max(left_s - (self.clock() - asleep_at), -MOST_CREDIT_S)
