"""The cache, as operators see it."""

import structlog

from gateway.errors import NotFoundError, Violation
from gateway.identity.stores import TenantStore
from gateway.rpc.admin_calls.messages import MAX_NAME_CHARS, refuse, too_long
from radixgate.v1 import admin_pb2

_log = structlog.get_logger(__name__)


class CacheCalls:
    def __init__(self, tenants: TenantStore) -> None:
        self._tenants = tenants

    async def invalidate_cache(self, request: admin_pb2.InvalidateCacheRequest) -> admin_pb2.InvalidateCacheResponse:
        if len(request.adapter) > MAX_NAME_CHARS:
            refuse([Violation("adapter", too_long(request.adapter))])
        version = await self._tenants.bump_cache_version(request.tenant_id, request.adapter)
        if version is None:
            raise NotFoundError("tenant", request.tenant_id)
        _log.info("cache invalidated", tenant=request.tenant_id, adapter=request.adapter, cache_version=version)
        return admin_pb2.InvalidateCacheResponse(cache_version=version)

    async def get_cache_stats(self, request: admin_pb2.GetCacheStatsRequest) -> admin_pb2.GetCacheStatsResponse:
        raise NotImplementedError
