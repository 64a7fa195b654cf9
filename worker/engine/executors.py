"""Where forward passes run: in the engine's own thread, or beside it. Knows nothing of models.

Whoever can start a pass without waiting for it (on a GPU, say) implements `AsyncExecutor` itself.
"""

import threading
from queue import SimpleQueue

from worker.batch import Batch, Executor, PendingStep, SampledToken


class InlineExecutor:
    """Runs each pass where and when its result is asked for: nothing happens beside it, all that can before it.

    The better way where the model computes on the processor itself: beside a pass that has all cores there is nothing
    to be gained, and each change of threads costs (`benchmarks/step.py`).
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def start(self, batch: Batch) -> PendingStep:
        return _Postponed(self._executor, batch)

    def close(self) -> bool:
        """There is nothing to end."""
        return True


class _Postponed:
    def __init__(self, executor: Executor, batch: Batch) -> None:
        self._executor = executor
        self._batch = batch

    def result(self) -> list[SampledToken]:
        return self._executor.run(self._batch)


class ThreadExecutor:
    """Runs all passes on one thread of its own, so that their caller can do something else until it needs the result.

    It is always the same thread: a team of OpenMP threads belongs to the thread that formed it. The thread sleeps
    between passes, and the caller sleeps in `result`.
    """

    def __init__(self, executor: Executor, name: str = "forward") -> None:
        self._executor = executor
        self._batches: SimpleQueue[Batch | None] = SimpleQueue()
        self._results: SimpleQueue[list[SampledToken] | BaseException] = SimpleQueue()
        # A daemon, because a pass that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, batch: Batch) -> PendingStep:
        self._batches.put(batch)
        return _Awaited(self._results)

    def close(self, timeout_s: float = 10.0) -> bool:
        """End the thread, once no pass is under way. False: one still was after `timeout_s`."""
        self._batches.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._results.put(self._executor.run(batch))
            except BaseException as error:  # noqa: BLE001 - whatever it is, the one who waits has to learn of it
                self._results.put(error)


class _Awaited:
    def __init__(self, results: "SimpleQueue[list[SampledToken] | BaseException]") -> None:
        self._results = results

    def result(self) -> list[SampledToken]:
        outcome = self._results.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome
