"""Those who wait for a worker, and what wakes them. Belongs to the event loop."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from gateway.errors import NoWorkerError

T = TypeVar("T")


class WaitObserver(Protocol):
    def worker_awaited(self, seconds: float, found: bool) -> None: ...


class Arrivals:
    """Tells of every change after which a request may find a worker that found none before."""

    def __init__(self) -> None:
        self._next = asyncio.Event()
        self.closed = False

    def notify(self) -> None:
        """Something has changed: whoever waits now is to look again."""
        event, self._next = self._next, asyncio.Event()
        event.set()

    def close(self) -> None:
        """The gateway ends: nobody waits any longer."""
        self.closed = True
        self.notify()

    async def wait(self, at_most_s: float) -> None:
        """Return after the next change, or after this time; at once when closed."""
        if self.closed or at_most_s <= 0:
            return
        event = self._next
        try:
            async with asyncio.timeout(at_most_s):
                await event.wait()
        except TimeoutError:
            pass


class Patience:
    """How long a request waits where no worker is there for it."""

    def __init__(self, arrivals: Arrivals, wait_s: float, observer: WaitObserver) -> None:
        self._arrivals = arrivals
        self._wait_s = wait_s
        self._observer = observer

    async def until(self, attempt: Callable[[], Awaitable[T]], at_most_s: float | None = None) -> T:
        """Return what `attempt` returns, which is made again after each change while it raises NoWorkerError.

        Raises the last one of those when the time is over, `at_most_s` if that is shorter.
        """
        try:
            return await attempt()
        except NoWorkerError:
            began_at = time.monotonic()
        give_up_at = began_at + (self._wait_s if at_most_s is None else min(self._wait_s, at_most_s))
        found = False
        try:
            while True:
                remaining_s = give_up_at - time.monotonic()
                await self._arrivals.wait(remaining_s)
                try:
                    result = await attempt()
                except NoWorkerError:
                    if self._arrivals.closed or time.monotonic() >= give_up_at:
                        raise
                else:
                    found = True
                    return result
        finally:
            self._observer.worker_awaited(time.monotonic() - began_at, found)
