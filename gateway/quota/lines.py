"""Calls of this gateway that wait for a place of their tenant's.

Of each tenant only the first in line asks; who gets in, or gives up, wakes the next. So what waits costs little, and
nobody overtakes. The first asks when a place has become free here, and now and then, for those of other gateways.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.quota.bounds import PLACES, Ask, Queued, Refused

ResultT = TypeVar("ResultT")

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25


class Lines:
    """Belongs to the event loop. Invariant: holds exactly the calls inside `wait`, in order of arrival."""

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._lines: dict[str, OrderedDict[str, asyncio.Event]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def wake(self, tenant: str) -> None:
        """A place of the tenant's may be free."""
        if line := self._lines.get(tenant):
            next(iter(line.values())).set()

    async def wait(
        self,
        ask: Ask,
        decide: Callable[[], Awaitable[ResultT | Queued | Refused]],
        tell_waiting: Callable[[int], None],
    ) -> ResultT | Refused:
        """Return the first of `decide`'s answers that is not to wait. `tell_waiting` is told how many there are."""
        line = self._lines.setdefault(ask.tenant, OrderedDict())
        turn = line[ask.lease] = asyncio.Event()
        pause_s = _FIRST_PAUSE_S
        tell_waiting(len(self))
        try:
            async with asyncio.timeout(self._max_wait_s):
                while True:
                    await self._turn(line, ask.lease, turn, pause_s)
                    decision = await decide()
                    if not isinstance(decision, Queued):
                        return decision
                    pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)
        except TimeoutError:
            return Refused(PLACES, ask.bounds.max_concurrent_requests or 0, None)
        finally:
            del line[ask.lease]
            if line:
                self.wake(ask.tenant)
            else:
                del self._lines[ask.tenant]
            tell_waiting(len(self))

    async def _turn(
        self, line: "OrderedDict[str, asyncio.Event]", lease: str, turn: asyncio.Event, pause_s: float
    ) -> None:
        """Return when it is time to ask: for the first in line when woken or after a pause."""
        while next(iter(line)) != lease:
            await turn.wait()
            turn.clear()
        try:
            async with asyncio.timeout(pause_s):
                await turn.wait()
        except TimeoutError:
            pass
        turn.clear()
