"""The cache, as operators see it."""

from collections.abc import Iterable

import structlog

from gateway.control.cache import CacheControl, WorkerCache
from gateway.control.purges import Purge
from gateway.errors import NotFoundError, Violation
from gateway.identity.stores import TenantStore
from gateway.rpc.admin_calls.messages import MAX_NAME_CHARS, refuse, too_long
from radixgate.v1 import admin_pb2, worker_pb2

_log = structlog.get_logger(__name__)


class CacheCalls:
    def __init__(self, tenants: TenantStore, control: CacheControl) -> None:
        self._tenants = tenants
        self._control = control

    async def invalidate_cache(self, request: admin_pb2.InvalidateCacheRequest) -> admin_pb2.InvalidateCacheResponse:
        if len(request.adapter) > MAX_NAME_CHARS:
            refuse([Violation("adapter", too_long(request.adapter))])
        version = await self._tenants.bump_cache_version(request.tenant_id, request.adapter)
        if version is None:
            raise NotFoundError("tenant", request.tenant_id)
        _log.info("cache invalidated", tenant=request.tenant_id, adapter=request.adapter, cache_version=version)
        purged = None
        if request.purge:
            purged = purged_message(await self._control.purge(request.tenant_id, request.adapter or None))
        return admin_pb2.InvalidateCacheResponse(cache_version=version, purged=purged)

    async def purge_tenant(self, tenant_id: str) -> admin_pb2.PurgedCache:
        """Free everything that a tenant has cached; it has been made unreachable before."""
        return purged_message(await self._control.purge(tenant_id))

    async def get_cache_stats(self, request: admin_pb2.GetCacheStatsRequest) -> admin_pb2.GetCacheStatsResponse:
        if request.tenant_id and await self._tenants.get(request.tenant_id) is None:
            raise NotFoundError("tenant", request.tenant_id)
        described = await self._control.describe()
        return admin_pb2.GetCacheStatsResponse(workers=[_stats(each, request.tenant_id) for each in described])


def purged_message(purge: Purge) -> admin_pb2.PurgedCache:
    return admin_pb2.PurgedCache(
        device_tokens=purge.device_tokens,
        host_tokens=purge.host_tokens,
        namespaces=purge.num_namespaces,
        unreachable_workers=purge.unreachable_workers,
    )


def _stats(cache: WorkerCache, tenant_id: str) -> admin_pb2.WorkerCacheStats:
    stats = admin_pb2.WorkerCacheStats(worker=cache.worker, model=cache.model)
    described = cache.described
    if described is None:
        return stats
    stats.reachable = True
    stats.device_slots, stats.device_free_slots = described.device_slots, described.device_free_slots
    stats.host_slots, stats.host_free_slots = described.host_slots, described.host_free_slots
    stats.tenants.extend(_tenants(described.tenants, tenant_id))
    return stats


def _tenants(described: Iterable[worker_pb2.TenantCache], tenant_id: str) -> list[admin_pb2.TenantCacheStats]:
    return [
        admin_pb2.TenantCacheStats(
            tenant_id=each.tenant,
            device_tokens=each.device_tokens,
            host_tokens=each.host_tokens,
            namespaces=each.namespaces,
        )
        for each in described
        if tenant_id in {"", each.tenant}
    ]
