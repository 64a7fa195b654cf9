"""The live view: one thread asks the source, this one draws and takes keys."""

import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console, Group
from rich.live import Live

from cli.top.fleet import Fleet
from cli.top.keys import Controls, pressed
from cli.top.screen import screen
from cli.top.sources import Poll, Source
from cli.top.terminal import keyboard

_LOOK_AROUND_S = 0.25  # how often the terminal's size is looked at
_JOIN_S = 1.0


class _Poller:
    """Asks a source at intervals, on a thread of its own, and wakes whoever waits at `wakeup`."""

    def __init__(self, source: Source, window_s: float, interval_s: float) -> None:
        self.wakeup, self._bell = os.pipe()
        self.polls: queue.SimpleQueue[Poll] = queue.SimpleQueue()
        self.interval_s = interval_s
        self._source = source
        self._window_s = window_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)

    def __enter__(self) -> "_Poller":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)
        self._source.close()
        if not self._thread.is_alive():  # else it waits for an answer, and would ring a bell that is gone
            os.close(self._bell)
            os.close(self.wakeup)

    def _run(self) -> None:
        for poll in self._source.begin(self._window_s):
            self._tell(poll)
        asked_at = time.monotonic()
        while not self._stop.wait(_LOOK_AROUND_S / 2):  # the interval may change while it runs
            if time.monotonic() >= asked_at + self.interval_s:
                asked_at = time.monotonic()
                self._tell(self._source.poll())

    def _tell(self, poll: Poll) -> None:
        if not self._stop.is_set():
            self.polls.put(poll)
            os.write(self._bell, b".")


def watch(source: Source, console: Console, *, window_s: float, interval_s: float) -> None:
    """Show what the source says until somebody quits. The terminal is left as it was."""
    fleet = Fleet(source.title, window_s)
    controls = Controls(interval_s=interval_s)
    shown: tuple[object, ...] = ()
    view = fleet.view()
    with _ends_by_signal(), keyboard() as keys, _live(console) as live, _Poller(source, window_s, interval_s) as poller:
        while not controls.quit:
            size = console.size
            if (view, controls, size) != shown:
                shown = (view, controls, size)
                live.update(Group(*screen(view, controls, size.width, size.height)), refresh=True)
            sent = keys.read(poller.wakeup, _LOOK_AROUND_S)
            if sent is None:
                return
            for key in sent:
                controls = pressed(controls, key)
            poller.interval_s = controls.interval_s
            if _take(poller.polls, fleet) and not controls.held:
                view = fleet.view()


def _take(polls: "queue.SimpleQueue[Poll]", fleet: Fleet) -> bool:
    """Hand on what has come; returns whether anything has."""
    come = False
    while True:
        try:
            fleet.take(polls.get_nowait())
        except queue.Empty:
            return come
        come = True


def _live(console: Console) -> Live:
    return Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop")


@contextmanager
def _ends_by_signal() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end us the way an exception does, so that the terminal is given back."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, end) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
