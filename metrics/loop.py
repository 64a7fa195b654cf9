"""Whether an event loop still answers: asked from other threads, of a loop that may be stuck."""

import asyncio
import threading
from typing import Final

PATIENCE_S: Final = 2.0


class LoopWatch:
    """Asks a loop to do nothing, and sees whether it gets round to that."""

    def __init__(self, loop: asyncio.AbstractEventLoop, patience_s: float = PATIENCE_S) -> None:
        self._loop = loop
        self._patience_s = patience_s

    def why_not_live(self) -> str | None:
        """Return why the loop's process should be started anew, or None. Not from the loop's own thread."""
        answered = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answered.set)
        except RuntimeError:
            return "the event loop is closed"
        if answered.wait(self._patience_s):
            return None
        return f"the event loop has not answered for {self._patience_s:g} s"
