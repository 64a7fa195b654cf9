"""The calls that are being served, over all fronts together: how many there may be, and when there are none left."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import UnavailableError
from gateway.serving.capacity import Capacity


class InFlight:
    """Calls being served. After `close` there will be no new ones."""

    def __init__(self) -> None:
        self._count = 0
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return self._count

    @property
    def closed(self) -> bool:
        return self._closed

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count one call for as long as the context lasts. Raises UnavailableError after `close`."""
        if self._closed:
            raise UnavailableError("the gateway is shutting down", reason="GATEWAY_SHUTTING_DOWN")
        self._count += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._count -= 1
            if self._count == 0:
                self._idle.set()

    def close(self) -> None:
        self._closed = True

    async def wait_idle(self) -> None:
        await self._idle.wait()


class Calls:
    """What all fronts share. Every call is `in_flight` from its arrival on, and takes `room` once its caller is known:
    strangers take none from tenants.
    """

    def __init__(self, max_calls: int) -> None:
        self.in_flight = InFlight()
        self.room = Capacity(max_calls, "calls", "TOO_MANY_CALLS")
