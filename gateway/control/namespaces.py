"""Which cache namespaces each tenant has, so that they can be purged.

    {radixgate}:namespaces:TENANT    zset   "EXTRA_KEY_HEX:ADAPTER_REVISION:ADAPTER" -> last use

Written beside requests: none of them ever waits for it, or fails with it.
"""

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
from redis.asyncio import Redis

from gateway.control.purges import read_namespace, written_namespace
from gateway.dispatch.generation import Generation
from gateway.errors import UnavailableError
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import PREFIX
from hicache.keys import Namespace

_log = structlog.get_logger(__name__)

WRITTEN_WITHIN_S: Final = 0.1
MAX_OF_TENANT: Final = 20_000  # the ones that were not used for longest are forgotten
_KEPT_S: Final = 30 * 86_400  # after a tenant's last request
_RETOUCH_S: Final = 300.0
_MAX_KNOWN: Final = 200_000
_MAX_UNWRITTEN: Final = 200_000
_MAX_BATCH: Final = 2_000

_Used = tuple[str, str]  # tenant, member


class UsedNamespaces:
    """Implements Namespaces. Belongs to the event loop.

    Invariant: whatever was used since Redis has last been told is unwritten, up to a bound.
    """

    def __init__(
        self,
        client: Redis,
        reach: StoreReach,
        clock: Callable[[], float] = time.monotonic,
        max_of_tenant: int = MAX_OF_TENANT,
    ) -> None:
        self._client = client
        self._reach = reach
        self._clock = clock
        self._max_of_tenant = max_of_tenant
        self._known: OrderedDict[_Used, float] = OrderedDict()  # when Redis was last told; the latest used is last
        self._unwritten: dict[_Used, float] = {}  # by time of day
        self._news = asyncio.Event()

    def used(self, generation: Generation) -> None:
        namespace = Namespace(generation.extra_key, generation.adapter_revision)
        used = (generation.tenant, f"{written_namespace(namespace)}:{generation.adapter}")
        now = self._clock()
        told_at = self._known.pop(used, None)
        fresh = told_at is not None and now - told_at < _RETOUCH_S
        self._known[used] = told_at if fresh and told_at is not None else now
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        if fresh:
            return
        self._unwritten[used] = time.time()
        if len(self._unwritten) > _MAX_UNWRITTEN:
            self._unwritten.pop(next(iter(self._unwritten)))
        self._news.set()

    async def run(self) -> None:
        """Tell Redis, until cancelled; at the end what is left."""
        try:
            while True:
                await self._news.wait()
                await asyncio.sleep(WRITTEN_WITHIN_S / 2)
                self._news.clear()
                try:
                    await self.write()
                except Exception as error:  # noqa: BLE001 - it goes on, whatever went wrong this time
                    _log.error("namespaces not written", error=type(error).__name__)
        finally:
            await self.write()

    async def write(self) -> None:
        """Tell Redis what it has not been told. While it is away that waits."""
        while self._unwritten:
            batch = dict(list(self._unwritten.items())[:_MAX_BATCH])
            try:
                await self._reach.call(lambda batch=batch: self._put(batch))  # type: ignore[misc]
            except UnavailableError:
                return  # see `when_back`
            for used, at in batch.items():
                if self._unwritten.get(used) == at:
                    del self._unwritten[used]

    def when_back(self) -> None:
        """Redis answers again."""
        self._news.set()

    async def of_tenant(self, tenant_id: str, adapter: str | None = None) -> Mapping[str, Namespace]:
        """Return a tenant's namespaces by their names here: all, or those of one adapter ("": the base model).

        Raises UnavailableError.
        """
        await self.write()
        members: Any = await self._reach.call(lambda: self._client.zrange(_key(tenant_id), 0, -1))
        split = [(member, *member.rsplit(":", 1)) for member in members]
        return {member: read_namespace(name) for member, name, of in split if adapter is None or of == adapter}

    async def forget(self, tenant_id: str, names: Mapping[str, Namespace], used_before: float) -> None:
        """Forget namespaces that were purged, but for those that were used since `used_before` (time of day)."""
        for name in names:
            self._known.pop((tenant_id, name), None)
        for start in range(0, len(names), _MAX_BATCH):
            chunk = list(names)[start : start + _MAX_BATCH]
            await self._reach.call(lambda chunk=chunk: self._remove(tenant_id, chunk, used_before))  # type: ignore[misc]

    async def _put(self, batch: Mapping[_Used, float]) -> None:
        by_tenant: dict[str, dict[str, float]] = defaultdict(dict)
        for (tenant_id, member), at in batch.items():
            by_tenant[tenant_id][member] = at
        async with self._client.pipeline(transaction=False) as pipeline:
            for tenant_id, members in by_tenant.items():
                key = _key(tenant_id)
                pipeline.zadd(key, members, gt=True)
                pipeline.zremrangebyrank(key, 0, -self._max_of_tenant - 1)
                pipeline.expire(key, _KEPT_S)
            await pipeline.execute()

    async def _remove(self, tenant_id: str, names: list[str], used_before: float) -> None:
        key = _key(tenant_id)
        scores: Any = await self._client.zmscore(key, names)
        old = [name for name, at in zip(names, scores, strict=True) if at is not None and at < used_before]
        if old:
            await self._client.zrem(key, *old)


def _key(tenant_id: str) -> str:
    return f"{PREFIX}namespaces:{tenant_id}"
