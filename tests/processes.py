"""Waiting for conditions, and looking at processes, without sleeping for luck."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 10.0, what: str = "condition") -> None:
    """Return as soon as `condition` holds; fail when it does not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def open_files() -> set[Path]:
    """What this process has open. Others open and close files meanwhile."""
    found = set[Path]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(descriptor.readlink())
    return found
