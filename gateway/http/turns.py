"""The prompts of one HTTP request, worked on beside each other as far as the tenant's limits allow."""

import asyncio
from collections.abc import Awaitable, Callable

from gateway.errors import QuotaExceededError

# Prompts of one request that are worked on at a time, where the tenant may have as many requests.
AT_A_TIME = 16

_PLACES = "max_concurrent_requests"
# A place that one of ours has left is free for the next one a moment later. What others hold may take longer, and is
# waited for only as long as some of ours have places.
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5
_MAX_TRIES = 8

Serve = Callable[[int], Awaitable[None]]


class Turns:
    """Calls `serve(0)` to `serve(count - 1)`. The first failure ends all."""

    def __init__(self, count: int, max_running: int | None, serve: Serve) -> None:
        """`max_running`: the tenant's requests that may run at a time. `serve` has done nothing when it is refused."""
        self._count = count
        self._serve = serve
        self._turns = asyncio.Semaphore(min(AT_A_TIME, max_running or AT_A_TIME))
        self._running = 0
        self._ended = 0

    async def run(self) -> None:
        if self._count == 1:
            await self._serve(0)
            return
        try:
            async with asyncio.TaskGroup() as group:
                for place in range(self._count):
                    group.create_task(self._one(place))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None  # the others failed for the same request, or were cancelled

    async def _one(self, place: int) -> None:
        async with self._turns:
            tries, pause_s = 0, _FIRST_PAUSE_S
            while True:
                try:
                    await self._served(place)
                except QuotaExceededError as error:
                    tries = 0 if self._running else tries + 1
                    if error.limit != _PLACES or not (self._running or self._ended) or tries > _MAX_TRIES:
                        raise
                else:
                    return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _served(self, place: int) -> None:
        self._running += 1
        try:
            await self._serve(place)
            self._ended += 1
        finally:
            self._running -= 1
