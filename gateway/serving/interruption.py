"""Ends a call from outside, with an error of its own, whatever it is waiting for."""

import asyncio
from types import TracebackType
from typing import Self

from gateway.errors import GatewayError


class Interruption:
    """A context around the task that serves one call. Works like `asyncio.timeout`, without the clock.

    Invariant: a cancellation that did not come from `interrupt` passes through unchanged.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._error: GatewayError | None = None

    def interrupt(self, error: GatewayError) -> None:
        """End what runs inside the context with `error`. Without effect outside of it, and the second time."""
        if self._task is not None and self._error is None:
            self._error = error
            self._task.cancel()

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._error is None or task is None:
            return
        if task.uncancel() <= self._cancelling and (kind is None or issubclass(kind, asyncio.CancelledError)):
            raise self._error from None
