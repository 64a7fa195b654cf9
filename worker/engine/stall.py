"""For how long an engine has had something to do and nothing has moved: seen from other threads than its own.

nothing to do                              0
work, and steps that compute or tell       0, or the time since the last one
work, and a pass that does not return      the time since the last step that did
a thread that is gone, commands waiting    the time since the first of them entered
"""

from collections.abc import Callable


class StallWatch:
    """Written by the engine's thread and, one at a time, by those who enter commands; read by anybody.

    It takes no lock: what is read is true as of some moment just now.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._has_work = False
        self._moved_at = self._entered_at = clock()

    def entered_first(self) -> None:
        """A command enters an empty queue."""
        self._entered_at = self._clock()

    def looked(self, has_work: bool) -> None:
        """The engine's thread has carried commands out and sees what there is to do."""
        if not (has_work and self._has_work):
            self._moved_at = self._clock()  # before the next line: who sees work must see since when
        self._has_work = has_work

    def moved(self) -> None:
        """A step has computed or told something."""
        self._moved_at = self._clock()

    def stalled_s(self, commands_wait: bool) -> float:
        """Return the time since something moved, or 0 while there is nothing to do."""
        if self._has_work:
            since = self._moved_at
        elif commands_wait:
            since = max(self._entered_at, self._moved_at)
        else:
            return 0.0
        return max(0.0, self._clock() - since)
