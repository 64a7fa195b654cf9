"""The usage log: a file, or standard output, with one JSON document a line, written beside the event loop.

A thread writes what waits and holds on to what it cannot write: a disk that is full delays lines, and once too many
wait, the newest are dropped and counted. No request waits for any of it. The file is opened anew when another one, or
none, lies under its name, so that it can be rotated by renaming it, and when told so.
"""

import json
import os
import threading
import time
from collections import deque
from itertools import islice
from typing import Final, Protocol

import structlog

from gateway.quota.usage_lines import Line

_log = structlog.get_logger(__name__)

STDOUT: Final = "-"
MAX_WAITING: Final = 10_000  # lines
_BATCH: Final = 1_000
_RETRY_S: Final = 1.0
_NEWLINE: Final = ord("\n")


class LostLinesObserver(Protocol):
    def usage_lines_lost(self, lines: int) -> None:
        """So many lines will never be written. From any thread."""
        ...


class UsageLog:
    """Implements UsageSink. `start` before use, `close` after the last call has ended.

    Invariant: a line is written whole, waits, or is counted as lost. One that a full disk has cut is written again.
    """

    def __init__(
        self, path: str, observer: LostLinesObserver, *, max_waiting: int = MAX_WAITING, retry_s: float = _RETRY_S
    ) -> None:
        """`path` "-" is standard output."""
        self._path = path
        self._observer = observer
        self._max_waiting = max_waiting
        self._retry_s = retry_s
        self._file = -1
        self._cut = False  # the file ends in a part of a line
        self._failing = False
        # What follows is shared, under the lock of `_changed`.
        self._changed = threading.Condition()
        self._waiting: deque[Line] = deque()
        self._reopen = False
        self._closes_by: float | None = None
        self._thread = threading.Thread(target=self._run, name="usage log", daemon=True)

    def start(self) -> None:
        """Raises OSError, naming the setting, for a file that cannot be opened."""
        try:
            self._file = self._open()
        except OSError as error:
            raise OSError(error.errno, f"gateway.usage_log: cannot open {self._path}: {error.strerror}") from error
        self._thread.start()

    def num_waiting(self) -> int:
        """How many lines are yet to be written. From any thread."""
        return len(self._waiting)

    def write(self, line: Line) -> None:
        """Take a line; it is written soon. From any thread."""
        with self._changed:
            if len(self._waiting) < self._max_waiting and self._closes_by is None:
                self._waiting.append(line)
                self._changed.notify()
                return
        self._observer.usage_lines_lost(1)

    def reopen(self) -> None:
        """Write what comes to the file that has the name then."""
        with self._changed:
            self._reopen = True
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Write what waits, for no longer than `timeout_s`; the rest is lost. Closing twice is harmless."""
        with self._changed:
            if self._closes_by is None:
                self._closes_by = time.monotonic() + timeout_s
                self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s + self._retry_s)
        with self._changed:
            lost = len(self._waiting)
            self._waiting.clear()
        if lost:
            self._observer.usage_lines_lost(lost)
            _log.error("usage log was not written to its end", path=self._path, lost_lines=lost)

    # ---------------------------------------------------------------------------------------------- the thread's own

    def _run(self) -> None:
        while (lines := self._next()) is not None:
            written = self._write(lines)
            with self._changed:
                for _ in range(min(written, len(self._waiting))):
                    self._waiting.popleft()
                if written < len(lines):
                    self._wait_for_room()
        if self._path != STDOUT and self._file >= 0:
            os.close(self._file)

    def _wait_for_room(self) -> None:
        """Wait until the next try. Lines that come meanwhile hasten nothing: each would have all be encoded again."""
        retry_at, is_closing = time.monotonic() + self._retry_s, self._closes_by is not None
        while not self._reopen and is_closing == (self._closes_by is not None):
            left_s = retry_at - time.monotonic()
            if left_s <= 0:
                return
            self._changed.wait(left_s)

    def _next(self) -> list[Line] | None:
        """Wait for lines and return some, which stay in line until they are written; None for the end."""
        with self._changed:
            while not self._waiting and not self._reopen and self._closes_by is None:
                self._changed.wait()
            is_over = self._closes_by is not None and time.monotonic() >= self._closes_by
            if self._closes_by is not None and (is_over or not self._waiting):
                return None
            return list(islice(self._waiting, _BATCH))

    def _write(self, lines: list[Line]) -> int:
        """Return how many of the lines were written, the first ones."""
        ends: list[int] = []
        content = bytearray(b"\n" if self._cut else b"")
        for line in lines:
            content += _encoded(line)
            ends.append(len(content))
        done = 0
        try:
            self._follow()
            while done < len(content):
                done += os.write(self._file, memoryview(content)[done:])
        except OSError as error:
            self._failed(error)
        else:
            self._succeeded()
        written = sum(end <= done for end in ends)
        if done:
            self._cut = content[done - 1] != _NEWLINE
        return written

    def _follow(self) -> None:
        """Open the file anew if it is another one by now, or none. Raises OSError."""
        if self._path == STDOUT:
            return
        with self._changed:
            wanted, self._reopen = self._reopen, False
        if not wanted and self._file >= 0 and _is_same(self._path, self._file):
            return
        opened = self._open()
        before, self._file = self._file, opened
        self._cut = False
        if before >= 0:
            os.close(before)

    def _open(self) -> int:
        if self._path == STDOUT:
            return 1
        # Not to wait for a reader, where it is a FIFO that has none: that fails.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        opened = os.open(self._path, flags, 0o640)
        os.set_blocking(opened, True)
        return opened

    def _failed(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            _log.error(
                "usage log cannot be written", path=self._path, reason=error.strerror, waiting=self.num_waiting()
            )

    def _succeeded(self) -> None:
        if self._failing:
            self._failing = False
            _log.info("usage log is written again", path=self._path)


def _encoded(line: Line) -> bytes:
    # Whatever is no Unicode becomes "?": one odd name must not cost all lines that follow.
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"


def _is_same(path: str, file: int) -> bool:
    try:
        named, opened = os.stat(path), os.fstat(file)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
