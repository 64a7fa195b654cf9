"""Frees namespaces on all workers, and on those that are away when they are back.

    {radixgate}:purges:WORKER    zset   "EXTRA_KEY_HEX:ADAPTER_REVISION" -> when the purge was asked for

Whatever is purged is out of reach already: what is left for later costs room, and nothing else.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from redis.asyncio import Redis

from gateway.control.workers import MAX_NAMESPACES, WorkerAwayError, WorkerRefusedError, drop_cache
from gateway.dispatch.fleet import Fleet
from gateway.dispatch.link import WorkerLink
from gateway.errors import UnavailableError
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import PREFIX
from hicache.keys import Namespace
from radixgate.v1 import worker_pb2

_log = structlog.get_logger(__name__)

MAX_PENDING: Final = 100_000  # of one worker; the oldest are dropped
_PENDING_S: Final = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Purge:
    """What a purge has freed so far."""

    device_tokens: int = 0
    host_tokens: int = 0
    num_namespaces: int = 0
    unreachable_workers: tuple[str, ...] = ()


class Purges:
    """Speaks to the workers of this gateway; what waits for one of them is known to all gateways."""

    def __init__(self, fleet: Fleet, client: Redis, reach: StoreReach) -> None:
        self._fleet = fleet
        self._client = client
        self._reach = reach
        self._waiting: dict[str, int] = {}  # by worker, as far as this gateway has heard

    @property
    def num_waiting(self) -> int:
        """How many namespaces wait for a worker of this gateway to be back. From any thread."""
        return sum(self._waiting.get(link.address, 0) for link in self._fleet.links())

    def forget(self, worker: str) -> None:
        """A worker is gone for good. What waits for it is kept where all gateways find it, should it come back."""
        self._waiting.pop(worker, None)

    async def purge(self, namespaces: Sequence[Namespace]) -> Purge:
        """Free namespaces everywhere. Raises UnavailableError where a worker is away and Redis is, too."""
        if not namespaces:
            return Purge()
        links = self._fleet.links()
        outcomes = await asyncio.gather(*(self._purge_one(link, namespaces) for link in links))
        return Purge(
            sum(device for device, _, _ in outcomes),
            sum(host for _, host, _ in outcomes),
            len(namespaces),
            tuple(link.address for link, (_, _, reached) in zip(links, outcomes, strict=True) if not reached),
        )

    async def catch_up(self, link: WorkerLink) -> None:
        """Free on a worker that is back what was purged while it was away. Raises UnavailableError."""
        key = _pending(link.address)
        self._waiting[link.address] = int(await self._reach.call(lambda: self._client.zcard(key)))
        while link.calls is not None:
            waiting: Any = await self._reach.call(lambda: self._client.zrange(key, 0, MAX_NAMESPACES - 1))
            if not waiting:
                self._waiting[link.address] = 0
                return
            try:
                await drop_cache(link, [_message(read_namespace(member)) for member in waiting])
            except (WorkerAwayError, WorkerRefusedError) as error:
                _log.warning("purge not caught up", worker=link.address, reason=error.detail)
                return
            await self._reach.call(lambda done=waiting: self._client.zrem(key, *done))  # type: ignore[misc]
            _log.info("purge caught up", worker=link.address, namespaces=len(waiting))

    async def _purge_one(self, link: WorkerLink, namespaces: Sequence[Namespace]) -> tuple[int, int, bool]:
        """Return the tokens freed on device and host, and whether the worker has done all of it."""
        device = host = 0
        for start in range(0, len(namespaces), MAX_NAMESPACES):
            chunk = namespaces[start : start + MAX_NAMESPACES]
            try:
                answer = await drop_cache(link, [_message(namespace) for namespace in chunk])
            except (WorkerAwayError, WorkerRefusedError) as error:
                _log.warning("purge left for later", worker=link.address, reason=error.detail)
                await self._leave(link, namespaces[start:])
                return device, host, False
            device += answer.device_tokens
            host += answer.host_tokens
        return device, host, True

    async def _leave(self, link: WorkerLink, namespaces: Sequence[Namespace]) -> None:
        key, now = _pending(link.address), time.time()
        for start in range(0, len(namespaces), MAX_NAMESPACES):
            members = {written_namespace(each): now for each in namespaces[start : start + MAX_NAMESPACES]}

            async def put(members: dict[str, float] = members) -> int:
                async with self._client.pipeline(transaction=True) as pipeline:
                    pipeline.zadd(key, members)
                    pipeline.zremrangebyrank(key, 0, -MAX_PENDING - 1)
                    pipeline.expire(key, _PENDING_S)
                    _, dropped, _ = await pipeline.execute()
                return int(dropped)

            if dropped := await self._reach.call(put):
                _log.warning("purges forgotten", worker=link.address, namespaces=dropped)
        try:
            await self.catch_up(link)  # it may have come back in between
        except UnavailableError:
            _log.warning("purge left for later", worker=link.address, reason="redis is away")


def written_namespace(namespace: Namespace) -> str:
    return f"{namespace.extra_key.hex()}:{namespace.adapter_revision}"


def read_namespace(text: str) -> Namespace:
    extra_key, _, revision = text.partition(":")
    return Namespace(bytes.fromhex(extra_key), revision)


def _message(namespace: Namespace) -> worker_pb2.CacheNamespace:
    return worker_pb2.CacheNamespace(extra_key=namespace.extra_key, adapter_revision=namespace.adapter_revision)


def _pending(worker: str) -> str:
    return f"{PREFIX}purges:{worker}"
