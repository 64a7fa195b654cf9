"""What operators do with the cache: purge a tenant's part of it, look at what workers hold. Raises GatewayError."""

import asyncio
import time
from dataclasses import dataclass
from typing import Final

import structlog

from gateway.control.namespaces import WRITTEN_WITHIN_S, UsedNamespaces
from gateway.control.purges import Purge, Purges
from gateway.control.undertakings import Undertakings
from gateway.control.workers import WorkerAwayError, WorkerRefusedError, describe_cache
from gateway.dispatch.fleet import Fleet
from gateway.dispatch.link import WorkerLink
from radixgate.v1 import worker_pb2

_log = structlog.get_logger(__name__)

# Until every gateway has written which namespaces were used just now.
_WRITTEN_S: Final = 3 * WRITTEN_WITHIN_S


@dataclass(frozen=True, slots=True)
class WorkerCache:
    worker: str
    model: str
    described: worker_pb2.DescribeCacheResponse | None  # None: it could not be asked


class CacheControl:
    def __init__(self, fleet: Fleet, namespaces: UsedNamespaces, purges: Purges, undertakings: Undertakings) -> None:
        self._fleet = fleet
        self._namespaces = namespaces
        self._purges = purges
        self._undertakings = undertakings

    async def purge(self, tenant_id: str, adapter: str | None = None) -> Purge:
        """Free what a tenant has cached, or one of its adapters ("": the base model), on all tiers of all workers.

        Whoever asks has made it unreachable before. Raises UnavailableError.
        """
        return await self._undertakings.to_its_end(self._purge(tenant_id, adapter))

    async def describe(self) -> list[WorkerCache]:
        """Return what each worker of this gateway says about its cache."""
        return list(await asyncio.gather(*(self._describe(link) for link in self._fleet.links())))

    async def _purge(self, tenant_id: str, adapter: str | None) -> Purge:
        await asyncio.sleep(_WRITTEN_S)
        began_at = time.time()
        namespaces = await self._namespaces.of_tenant(tenant_id, adapter)
        purge = await self._purges.purge(list(namespaces.values()))
        await self._namespaces.forget(tenant_id, namespaces, began_at)
        _log.info("cache purged", tenant=tenant_id, adapter=adapter, namespaces=purge.num_namespaces)
        return purge

    async def _describe(self, link: WorkerLink) -> WorkerCache:
        try:
            return WorkerCache(link.address, link.last_model, await describe_cache(link))
        except (WorkerAwayError, WorkerRefusedError) as error:
            _log.warning("cache not described", worker=link.address, reason=error.detail)
            return WorkerCache(link.address, link.last_model, None)
