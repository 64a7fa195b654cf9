"""How a gateway learns that another one has changed something: a counter in Redis that each change raises.

    {radixgate}:changes         string   raised by one, in the same script, by everything that changes something
    {radixgate}:changed         zset     "key KEYID", "tenant ID" -> the number of their last change; the latest ones

Who needs to know at once asks Redis anyway. The watch is for what runs on, or is remembered.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog
from redis.asyncio import Redis

from gateway.errors import GatewayError, UnavailableError
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import PREFIX

_log = structlog.get_logger(__name__)

CHANGES = PREFIX + "changes"
CHANGED = PREFIX + "changed"
MAX_CHANGED = 10_000

# For scripts that change a tenant or a key: `changed(CHANGES, CHANGED, subject)`.
LUA_CHANGED = f"""
local function changed(counter, log, subject)
    redis.call('ZADD', log, redis.call('INCR', counter), subject)
    redis.call('ZREMRANGEBYRANK', log, 0, -{MAX_CHANGED + 1})
end
"""


@dataclass(frozen=True, slots=True)
class Changed:
    """What has changed between one number and a later one."""

    number: int
    subjects: frozenset[str] | None  # None: nobody knows, it may be anything


class ChangeLog:
    """Which tenants and keys have changed."""

    def __init__(self, client: Redis, reach: StoreReach) -> None:
        self._client = client
        self._reach = reach

    async def since(self, number: int | None) -> Changed:
        """Return what has changed after `number`; None: from the start. Raises UnavailableError."""

        async def read() -> Any:
            async with self._client.pipeline(transaction=True) as pipeline:
                pipeline.get(CHANGES)
                pipeline.zrangebyscore(CHANGED, f"({number or 0}", "+inf")
                pipeline.zcard(CHANGED)
                pipeline.zrange(CHANGED, 0, 0, withscores=True)
                return await pipeline.execute()

        counted, subjects, kept, first = await self._reach.call(read)
        now = int(counted or 0)
        # Redis may have lost some of what it had, or the log what is older than its oldest entry.
        is_whole = number is not None and number <= now and (kept < MAX_CHANGED or first[0][1] <= number + 1)
        return Changed(now, frozenset(subjects) if is_whole else None)


OnChange = Callable[[], Awaitable[None]]


def key_subject(key_id: str) -> str:
    return f"key {key_id}"


def tenant_subject(tenant_id: str) -> str:
    return f"tenant {tenant_id}"


@dataclass(slots=True, eq=False)
class _Subscriber:
    call: OnChange
    again_s: float | None
    seen: tuple[int, str | None] | None = None  # None: it has not been called yet
    again_at: float | None = None
    task: asyncio.Task[None] | None = None


class ChangeWatch:
    """Looks at the counter every `poll_s` and calls whoever wants to know that it has moved.

    Everybody is called once at the start, and whenever Redis has been away. Belongs to the event loop.
    Invariant: of each subscriber at most one call runs at a time, and one begins after the last change.
    """

    def __init__(self, client: Redis, reach: StoreReach, poll_s: float = 0.25) -> None:
        self._client = client
        self._reach = reach
        self._poll_s = poll_s
        self._subscribers: list[_Subscriber] = []
        self._outages = 0
        self._was_away = False

    def when_changed(self, call: OnChange, again_s: float | None = None) -> None:
        """Have `call` awaited after each change, and with `again_s` once more so long after that.

        One that raises GatewayError is called again at the next look.
        """
        self._subscribers.append(_Subscriber(call, again_s))

    async def run(self) -> None:
        """Watch until cancelled. Changes from now on are told."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    counted: Any = await self._reach.call(lambda: self._client.get(CHANGES))
                except UnavailableError:
                    self._was_away = True
                else:
                    # What is there now need not be what was there before, whatever the counter says.
                    self._outages += self._was_away
                    self._was_away = False
                    self._tell((self._outages, counted), tasks)
                await asyncio.sleep(self._poll_s)

    def _tell(self, state: tuple[int, str | None], tasks: asyncio.TaskGroup) -> None:
        now = asyncio.get_running_loop().time()
        for subscriber in self._subscribers:
            if subscriber.task is not None and not subscriber.task.done():
                continue
            if subscriber.seen != state:
                subscriber.again_at = now + subscriber.again_s if subscriber.again_s is not None else None
            elif subscriber.again_at is not None and now >= subscriber.again_at:
                subscriber.again_at = None
            else:
                continue
            subscriber.task = tasks.create_task(self._call(subscriber, state))

    async def _call(self, subscriber: _Subscriber, state: tuple[int, str | None]) -> None:
        try:
            await subscriber.call()
        except GatewayError as error:
            _log.warning("a change could not be followed yet", error=type(error).__name__)
            subscriber.seen = None
        except Exception as error:  # noqa: BLE001 - the watch goes on, whatever one of its subscribers does
            _log.error("a change was not followed", error=type(error).__name__)
            subscriber.seen = state
        else:
            subscriber.seen = state
