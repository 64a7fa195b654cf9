"""AdminService over gRPC: each call goes to the room that knows its subject, and leaves an entry in the audit log."""

from dataclasses import dataclass
from typing import Any

import grpc

from gateway.rpc.admin_calls.adapters import AdapterCalls
from gateway.rpc.admin_calls.audit import AuditCalls
from gateway.rpc.admin_calls.cache import CacheCalls
from gateway.rpc.admin_calls.keys import KeyCalls
from gateway.rpc.admin_calls.prefixes import PrefixCalls
from gateway.rpc.admin_calls.tenants import TenantCalls
from gateway.rpc.admin_calls.usage import UsageCalls
from radixgate.v1 import admin_pb2, admin_pb2_grpc

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class AdminRooms:
    """Who answers which calls."""

    tenants: TenantCalls
    keys: KeyCalls
    adapters: AdapterCalls
    prefixes: PrefixCalls
    cache: CacheCalls
    usage: UsageCalls
    audit: AuditCalls


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Runs behind the boundary, which has recognised the operator and translates the errors raised here."""

    def __init__(self, rooms: AdminRooms) -> None:
        self._rooms = rooms

    # ------------------------------------------------------------------------------------------------------- tenants

    async def CreateTenant(
        self, request: admin_pb2.CreateTenantRequest, context: _Context
    ) -> admin_pb2.CreateTenantResponse:
        return await self._rooms.tenants.create_tenant(request)

    async def GetTenant(self, request: admin_pb2.GetTenantRequest, context: _Context) -> admin_pb2.GetTenantResponse:
        return await self._rooms.tenants.get_tenant(request)

    async def ListTenants(
        self, request: admin_pb2.ListTenantsRequest, context: _Context
    ) -> admin_pb2.ListTenantsResponse:
        return await self._rooms.tenants.list_tenants(request)

    async def UpdateTenant(
        self, request: admin_pb2.UpdateTenantRequest, context: _Context
    ) -> admin_pb2.UpdateTenantResponse:
        return await self._rooms.tenants.update_tenant(request)

    async def SuspendTenant(
        self, request: admin_pb2.SuspendTenantRequest, context: _Context
    ) -> admin_pb2.SuspendTenantResponse:
        return await self._rooms.tenants.suspend_tenant(request)

    async def ResumeTenant(
        self, request: admin_pb2.ResumeTenantRequest, context: _Context
    ) -> admin_pb2.ResumeTenantResponse:
        return await self._rooms.tenants.resume_tenant(request)

    async def DeleteTenant(
        self, request: admin_pb2.DeleteTenantRequest, context: _Context
    ) -> admin_pb2.DeleteTenantResponse:
        return await self._rooms.tenants.delete_tenant(request)

    # ---------------------------------------------------------------------------------------------------------- keys

    async def CreateApiKey(
        self, request: admin_pb2.CreateApiKeyRequest, context: _Context
    ) -> admin_pb2.CreateApiKeyResponse:
        return await self._rooms.keys.create_api_key(request)

    async def ListApiKeys(
        self, request: admin_pb2.ListApiKeysRequest, context: _Context
    ) -> admin_pb2.ListApiKeysResponse:
        return await self._rooms.keys.list_api_keys(request)

    async def RotateApiKey(
        self, request: admin_pb2.RotateApiKeyRequest, context: _Context
    ) -> admin_pb2.RotateApiKeyResponse:
        return await self._rooms.keys.rotate_api_key(request)

    async def RevokeApiKey(
        self, request: admin_pb2.RevokeApiKeyRequest, context: _Context
    ) -> admin_pb2.RevokeApiKeyResponse:
        return await self._rooms.keys.revoke_api_key(request)

    # ------------------------------------------------------------------------------------------------------ adapters

    async def RegisterAdapter(
        self, request: admin_pb2.RegisterAdapterRequest, context: _Context
    ) -> admin_pb2.RegisterAdapterResponse:
        return await self._rooms.adapters.register_adapter(request)

    async def GetRegisteredAdapter(
        self, request: admin_pb2.GetRegisteredAdapterRequest, context: _Context
    ) -> admin_pb2.GetRegisteredAdapterResponse:
        return await self._rooms.adapters.get_registered_adapter(request)

    async def ListRegisteredAdapters(
        self, request: admin_pb2.ListRegisteredAdaptersRequest, context: _Context
    ) -> admin_pb2.ListRegisteredAdaptersResponse:
        return await self._rooms.adapters.list_registered_adapters(request)

    async def SplitAdapterTraffic(
        self, request: admin_pb2.SplitAdapterTrafficRequest, context: _Context
    ) -> admin_pb2.SplitAdapterTrafficResponse:
        return await self._rooms.adapters.split_adapter_traffic(request)

    async def RollBackAdapter(
        self, request: admin_pb2.RollBackAdapterRequest, context: _Context
    ) -> admin_pb2.RollBackAdapterResponse:
        return await self._rooms.adapters.roll_back_adapter(request)

    async def UnregisterAdapter(
        self, request: admin_pb2.UnregisterAdapterRequest, context: _Context
    ) -> admin_pb2.UnregisterAdapterResponse:
        return await self._rooms.adapters.unregister_adapter(request)

    # ------------------------------------------------------------------------------------------------------ prefixes

    async def CreatePublicPrefix(
        self, request: admin_pb2.CreatePublicPrefixRequest, context: _Context
    ) -> admin_pb2.CreatePublicPrefixResponse:
        return await self._rooms.prefixes.create_public_prefix(request)

    async def ListPublicPrefixes(
        self, request: admin_pb2.ListPublicPrefixesRequest, context: _Context
    ) -> admin_pb2.ListPublicPrefixesResponse:
        return await self._rooms.prefixes.list_public_prefixes(request)

    async def DeletePublicPrefix(
        self, request: admin_pb2.DeletePublicPrefixRequest, context: _Context
    ) -> admin_pb2.DeletePublicPrefixResponse:
        return await self._rooms.prefixes.delete_public_prefix(request)

    # --------------------------------------------------------------------------------------------------------- cache

    async def InvalidateCache(
        self, request: admin_pb2.InvalidateCacheRequest, context: _Context
    ) -> admin_pb2.InvalidateCacheResponse:
        return await self._rooms.cache.invalidate_cache(request)

    async def GetCacheStats(
        self, request: admin_pb2.GetCacheStatsRequest, context: _Context
    ) -> admin_pb2.GetCacheStatsResponse:
        return await self._rooms.cache.get_cache_stats(request)

    # --------------------------------------------------------------------------------------------------------- usage

    async def GetUsage(self, request: admin_pb2.GetUsageRequest, context: _Context) -> admin_pb2.GetUsageResponse:
        return await self._rooms.usage.get_usage(request)

    # --------------------------------------------------------------------------------------------------------- audit

    async def ListAuditEntries(
        self, request: admin_pb2.ListAuditEntriesRequest, context: _Context
    ) -> admin_pb2.ListAuditEntriesResponse:
        return await self._rooms.audit.list_audit_entries(request)
