"""Keeps a worker's entry in the registry: makes it, renews it, and takes it away when the worker ends."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from radixgate.v1 import worker_pb2
from worker.config import RegistryConfig
from worker.registry.entry import document
from worker.registry.keys import LEAVE, REGISTER, keys_of

_log = structlog.get_logger(__name__)

_LEAVE_S: Final = 2.0  # the longest that a worker that ends waits for Redis
_MOST_S: Final = 2.0  # for an answer
_AGAIN_S: Final = 1.0  # after a failure, at most


class RegistrarObserver(Protocol):
    def registered(self, outcome: str) -> None:
        """The entry was made or renewed ("ok"), another worker has it ("taken"), or Redis is "away"."""
        ...

    def unregistered(self) -> None:
        """The entry was taken away."""
        ...


class Registrar:
    """Owns the entry of this incarnation. Belongs to the event loop; a Redis that is away holds up nobody.

    Invariant: once `leave` has begun the entry is not made again.
    """

    def __init__(
        self,
        config: RegistryConfig,
        describe: Callable[[], worker_pb2.WorkerRegistration],
        observer: RegistrarObserver,
    ) -> None:
        """`describe` says what is to be known of the worker now."""
        assert config.url is not None
        self._ttl_s = config.ttl_s
        self._describe = describe
        self._observer = observer
        self._timeout_s = min(_MOST_S, config.ttl_s / 3)
        self._client = _client_of(config.url, self._timeout_s)
        self._register = self._client.register_script(REGISTER)
        self._leave = self._client.register_script(LEAVE)
        self._woken = asyncio.Event()
        self._leaving = False
        self._has_held = False
        self._outcome = ""
        self._holder: tuple[str, str] | None = None  # of this worker's id, where it is another one
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="registrar")

    def refresh(self) -> None:
        """What `describe` says has changed."""
        self._woken.set()

    async def leave(self) -> None:
        """Take the entry away, so that no gateway finds this worker any more. Twice is harmless."""
        if self._leaving:
            return
        self._leaving = True
        self._woken.set()
        if self._task is not None:
            _, late = await asyncio.wait([self._task], timeout=_LEAVE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.aclose()

    async def _run(self) -> None:
        while not self._leaving:
            self._woken.clear()
            wait_s = await self._keep()
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                continue
        if self._has_held:
            await self._take_away()

    async def _keep(self) -> float:
        """Make or renew the entry; return the time until that is due again."""
        told = self._describe()
        begins = "0" if self._has_held else "1"
        args: list[str | int] = [
            told.worker_id, told.incarnation, told.address, document(told), round(self._ttl_s * 1000), begins
        ]  # fmt: skip
        try:
            async with asyncio.timeout(self._timeout_s):
                holder: Any = await self._register(keys=keys_of(told.worker_id), args=args)
        except Exception as error:  # noqa: BLE001 - outermost: whatever it came to, the entry is to be made when it can be
            self._is(
                "away", "the registry cannot be reached: gateways that do not know this worker will not find it",
                error=type(error).__name__, detail=str(error)[:200],
            )  # fmt: skip
            # A Redis that has become a replica answers on, and takes nothing: whoever is found anew may be the master.
            await self._client.connection_pool.disconnect()
            return min(_AGAIN_S, self._ttl_s / 3) * random.uniform(0.5, 1.0)
        if holder:
            self._taken(told, (str(holder[0]), str(holder[1])))
            return self._ttl_s / 3
        self._has_held, self._holder = True, None
        self._is("ok", "registered", worker_id=told.worker_id, address=told.address)
        return self._ttl_s / 3

    def _taken(self, told: worker_pb2.WorkerRegistration, holder: tuple[str, str]) -> None:
        if holder != self._holder:
            _log.error(
                "another worker lives under this worker_id: gateways find that one, and not this one; give each worker "
                "a worker.worker_id of its own",
                worker_id=told.worker_id, address=told.address, holder=holder[1],
            )  # fmt: skip
        self._holder = holder
        self._outcome = "taken"
        self._observer.registered("taken")

    def _is(self, outcome: str, event: str, **fields: Any) -> None:
        if outcome != self._outcome:
            (_log.info if outcome == "ok" else _log.warning)(event, **fields)
        self._outcome = outcome
        self._observer.registered(outcome)

    async def _take_away(self) -> None:
        told = self._describe()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._leave(keys=keys_of(told.worker_id), args=[told.worker_id, told.incarnation])
        except Exception as error:  # noqa: BLE001 - outermost: the worker ends in any case
            _log.warning("the registration is left to expire", error=type(error).__name__)
        self._observer.unregistered()


def _client_of(url: str, timeout_s: float) -> Redis:
    return Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        # Once more at once: a connection that died while idle is noticed only when it is used.
        retry=Retry(ConstantBackoff(0), 1, supported_errors=(RedisConnectionError,)),
    )
