"""What the first process of a container has to do itself, because nobody stands between it and the kernel."""

import os
import signal
from types import FrameType


def end_on_sigterm() -> None:
    """Let SIGTERM end this process until it handles it otherwise, as it would if it were not the first one.

    The kernel gives the first process of a container only signals that it handles. A worker that is loading its model
    would not hear that it should end, and be killed when whoever asked has lost patience.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> None:
    """Nothing is served yet, so there is nothing to put in order."""
    os._exit(128 + number)
