"""Hands the engine's outputs to their consumer from a thread of its own, so that the engine never waits for it."""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from worker.engine.faults import report
from worker.engine.ports import Load, SequenceOutput

Deliver = Callable[[Sequence[SequenceOutput], Load], None]


class Delivery:
    """Calls `deliver` once for each `put`, in order, never twice at a time.

    What a stuck consumer leaves here is bounded by what the engine's sequences can still say: each ends.
    """

    def __init__(self, deliver: Deliver, name: str) -> None:
        self._deliver = deliver
        self._queue: SimpleQueue[tuple[Sequence[SequenceOutput], Load] | None] = SimpleQueue()
        # A daemon, because a stuck consumer must not keep the process from ending either.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, outputs: Sequence[SequenceOutput], load: Load) -> None:
        self._queue.put((outputs, load))

    def close(self, timeout_s: float) -> bool:
        """Deliver what is left; return whether that was done in time."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._deliver(*item)
            except Exception as error:  # noqa: BLE001 - outermost loop: the next outputs still count
                report("delivery failed", error, outputs=len(item[0]))
