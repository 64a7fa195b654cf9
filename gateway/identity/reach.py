"""Whether Redis answers, so that nobody waits for one that is known to be away."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import structlog
from redis.asyncio import Redis
from redis.exceptions import BusyLoadingError, ReadOnlyError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway.errors import UnavailableError

_log = structlog.get_logger(__name__)

ResultT = TypeVar("ResultT")

# Pieces that the time for an answer is counted in, see `_Patience`.
_PIECES = 8
_AWAY = (RedisConnectionError, RedisTimeoutError, BusyLoadingError, ReadOnlyError, OSError, TimeoutError)


class ReachObserver(Protocol):
    def store_reachable(self, reachable: bool) -> None:
        """Redis has begun, or ceased, to answer. Told once at the start, too."""
        ...


class StoreReach:
    """Calls Redis while it answers. Belongs to the event loop.

    The first call that finds it away, or slower than `timeout_s`, closes the way; from then on calls fail at once,
    until a probe has had an answer again. Invariant: while `away`, nothing but the probe speaks to Redis.
    """

    def __init__(self, client: Redis, timeout_s: float, observer: ReachObserver, probe_s: float = 0.25) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._observer = observer
        self._probe_s = probe_s
        self._lost = asyncio.Event()
        self._on_back: list[Callable[[], None]] = []
        observer.store_reachable(True)

    @property
    def away(self) -> bool:
        return self._lost.is_set()

    def when_back(self, call: Callable[[], None]) -> None:
        """Have `call` called each time that Redis answers again."""
        self._on_back.append(call)

    async def call(self, make: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Return what `make()` brings. Raises UnavailableError when Redis is away or fails."""
        if self.away:
            raise unavailable()
        try:
            with _cancellation_heard():
                async with _Patience(self._timeout_s):
                    return await make()
        except _AWAY as error:
            self._lose(error)
            raise unavailable() from error
        except RedisError as error:
            _log.error("redis refused a request", error=type(error).__name__, detail=str(error)[:200])
            raise unavailable() from error

    async def run(self) -> None:
        """Look for Redis whenever it is away, until cancelled."""
        while True:
            await self._lost.wait()
            await asyncio.sleep(self._probe_s)
            try:
                with _cancellation_heard():
                    async with _Patience(self._timeout_s):
                        await self._client.ping()
            except (RedisError, OSError, TimeoutError):
                continue
            self._find()

    def _lose(self, error: BaseException) -> None:
        if not self.away:
            self._lost.set()
            _log.warning("redis is away", error=type(error).__name__, detail=str(error)[:200])
            self._observer.store_reachable(False)

    def _find(self) -> None:
        self._lost.clear()
        _log.info("redis is back")
        self._observer.store_reachable(True)
        for call in self._on_back:
            call()


class _Patience:
    """Like `asyncio.timeout`, but time in which the event loop was held up does not count: it heard no answer then, and
    those that came meanwhile lie in their sockets. A loop that is busy is no Redis that is away.
    """

    def __init__(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._piece_s = timeout_s / _PIECES
        self._left = _PIECES
        self._bounds = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._bounds.__aenter__()
        self._wait()

    async def __aexit__(self, *ended: Any) -> None:
        self._timer.cancel()
        await self._bounds.__aexit__(*ended)

    def _wait(self) -> None:
        self._due = self._loop.time() + self._piece_s
        self._timer = self._loop.call_at(self._due, self._count)

    def _count(self) -> None:
        now = self._loop.time()
        if now < self._due + self._piece_s:
            self._left -= 1
        if self._left:
            self._wait()
        else:
            self._bounds.reschedule(now)


@contextmanager
def _cancellation_heard() -> Iterator[None]:
    """See that a cancellation ends the task, even if the client has swallowed it.

    It awaits through `asyncio.wait_for`, which before Python 3.12 returns a result that came at the same moment and
    says nothing of the cancellation: tasks would run on for ever, and calls beyond their deadline.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    except asyncio.CancelledError:
        raise
    except BaseException:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError from None
        raise
    else:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


def unavailable() -> UnavailableError:
    return UnavailableError("the store of tenants and keys cannot be reached", reason="IDENTITY_STORE_UNAVAILABLE")
