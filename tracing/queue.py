"""Spans on their way out: a bounded queue, and a thread that exports from it. Requests never wait for either."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import structlog

from tracing.spans import Span

_log = structlog.get_logger(__name__)

MAX_WAITING = 8192
MAX_BATCH = 512
_DELAY_S = 1.0
_TELL_EVERY_S = 60.0


class Exporter(Protocol):
    """Brings spans to a collector. Both are called from one thread, but `stop` also from another, while exporting."""

    def export(self, spans: Sequence[Span]) -> bool:
        """Return whether they have arrived. Blocks for a bounded time."""
        ...

    def stop(self) -> None:
        """End whatever it is at."""
        ...


class SpanQueue:
    """A SpanSink. Invariant: at most `max_waiting` spans wait, and each that was put is exported or counted as dropped.

    `dropped` counts those that found the queue full or the process ending, and those that did not arrive.
    """

    wanted = True

    def __init__(
        self,
        exporter: Exporter,
        *,
        max_waiting: int = MAX_WAITING,
        delay_s: float = _DELAY_S,
        tell_every_s: float = _TELL_EVERY_S,
    ) -> None:
        self.dropped = 0
        self.exported = 0
        self._exporter = exporter
        self._max_waiting = max_waiting
        self._delay_s = delay_s
        self._tell_every_s = tell_every_s
        self._waiting: deque[Span] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._cut_off = False
        self._told = 0  # dropped ones that the log knows of
        self._told_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="span export", daemon=True)
        self._thread.start()

    def put(self, spans: Sequence[Span]) -> None:
        with self._changed:
            room = 0 if self._closing else self._max_waiting - len(self._waiting)
            self._waiting.extend(spans[:room])
            self.dropped += len(spans) - min(room, len(spans))
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            with self._changed:
                self._cut_off = True
                self.dropped += len(self._waiting)
                self._waiting.clear()
        self._exporter.stop()
        self._tell(last=True)

    def _run(self) -> None:
        while batch := self._next_batch():
            arrived = self._export(batch)
            with self._changed:
                if arrived:
                    self.exported += len(batch)
                else:
                    self.dropped += len(batch)
            self._tell()

    def _next_batch(self) -> list[Span]:
        """Wait for spans, and a little longer for more; return none when all is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            self._changed.wait_for(lambda: len(self._waiting) >= MAX_BATCH or self._closing, self._delay_s)
            if self._cut_off:
                return []
            return [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]

    def _export(self, batch: Sequence[Span]) -> bool:
        try:
            return self._exporter.export(batch)
        except Exception as error:  # noqa: BLE001 - outermost loop: whatever an exporter does, the next batch is tried
            _log.warning("exporting spans failed", error=type(error).__name__)
            return False

    def _tell(self, *, last: bool = False) -> None:
        """Say what was dropped, once in a while."""
        now = time.monotonic()
        with self._changed:
            since = self.dropped - self._told
            if not since or (not last and now - self._told_at < self._tell_every_s):
                return
            self._told, self._told_at, total = self.dropped, now, self.dropped
        _log.warning("spans dropped: the collector is away, or too slow", spans=since, total=total)
