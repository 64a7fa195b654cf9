"""Hands the engine's news to their consumers from a thread of its own, so that the engine never waits for them."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from worker.engine.faults import report
from worker.engine.ports import CacheNews, Load, SequenceOutput

Deliver = Callable[[Sequence[SequenceOutput], Load, CacheNews | None], None]


class Delivery:
    """Calls `deliver` once for each `put`, and what `call` is given, in order, never twice at a time.

    What a stuck consumer leaves here is bounded by what the engine's sequences can still say, each of which ends, and
    by what changes in the cache meanwhile.
    """

    def __init__(self, deliver: Deliver, name: str) -> None:
        self._deliver = deliver
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # A daemon, because a stuck consumer must not keep the process from ending either.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, outputs: Sequence[SequenceOutput], load: Load, cache: CacheNews | None) -> None:
        self._queue.put(partial(self._deliver, outputs, load, cache))

    def call(self, tell: Callable[[], None]) -> None:
        """Have `tell` called behind everything that was put before."""
        self._queue.put(tell)

    def close(self, timeout_s: float) -> bool:
        """Deliver what is left; return whether that was done in time."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (tell := self._queue.get()) is not None:
            try:
                tell()
            except Exception as error:  # noqa: BLE001 - outermost loop: the next news still count
                report("delivery failed", error)
