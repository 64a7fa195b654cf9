"""AdminService, room by room as the service itself has them. Every method raises grpc.RpcError."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice

import grpc
from google.protobuf.field_mask_pb2 import FieldMask

from cli.admin_client.adapter_calls import AdapterCalls
from cli.admin_client.connection import PAGE_SIZE, TIMEOUT_S, Connection
from cli.admin_client.values import (
    AuditEntry,
    DeletedTenant,
    Invalidated,
    Key,
    Policy,
    PublicPrefix,
    Purged,
    Tenant,
    Usage,
    WorkerCache,
    duration_of,
    timestamp_of,
)
from radixgate.v1 import admin_pb2

_PURGE_TIMEOUT_S = 120.0  # asks every worker
_NO_POLICY = Policy()


class AdminClient:
    """Calls AdminService with the operator's token."""

    def __init__(self, channel: grpc.Channel, token: str) -> None:
        connection = Connection(channel, token)
        self._connection = connection
        self.tenants = TenantCalls(connection)
        self.keys = KeyCalls(connection)
        self.adapters = AdapterCalls(connection)
        self.prefixes = PrefixCalls(connection)
        self.cache = CacheCalls(connection)

    def ensure_tenant(self, tenant_id: str) -> None:
        """Create a tenant unless there is one of this name."""
        try:
            self.tenants.create(tenant_id)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
                raise

    def create_key(self, tenant_id: str, display_name: str = "") -> tuple[Key, str]:
        """Return the key's description and the key itself, which cannot be read again."""
        return self.keys.create(tenant_id, display_name)

    def usage(self, tenant_id: str, first_day: str = "", last_day: str = "") -> Usage:
        """Days read YYYY-MM-DD, in UTC; both count."""
        request = admin_pb2.GetUsageRequest(tenant_id=tenant_id, first_day=first_day, last_day=last_day)
        return Usage.of(self._connection.call(self._connection.stub.GetUsage, request))

    def audit_entries(self, limit: int) -> list[AuditEntry]:
        """Return the newest entries, newest first."""

        def entries() -> Iterator[AuditEntry]:
            token = ""
            while True:
                request = admin_pb2.ListAuditEntriesRequest(page_size=min(limit, PAGE_SIZE), page_token=token)
                page = self._connection.call(self._connection.stub.ListAuditEntries, request)
                yield from map(AuditEntry.of, page.entries)
                token = page.next_page_token
                if not token:
                    return

        return list(islice(entries(), limit))


class TenantCalls:
    def __init__(self, connection: Connection) -> None:
        self._call, self._stub = connection.call, connection.stub

    def create(
        self, tenant_id: str, display_name: str = "", policy: Policy = _NO_POLICY, request_id: str = ""
    ) -> Tenant:
        request = admin_pb2.CreateTenantRequest(
            tenant_id=tenant_id, display_name=display_name, policy=policy.message(), request_id=request_id
        )
        return Tenant.of(self._call(self._stub.CreateTenant, request).tenant)

    def get(self, tenant_id: str) -> Tenant:
        request = admin_pb2.GetTenantRequest(tenant_id=tenant_id)
        return Tenant.of(self._call(self._stub.GetTenant, request).tenant)

    def list(self) -> Iterator[Tenant]:
        token = ""
        while True:
            request = admin_pb2.ListTenantsRequest(page_size=PAGE_SIZE, page_token=token)
            page = self._call(self._stub.ListTenants, request)
            yield from map(Tenant.of, page.tenants)
            token = page.next_page_token
            if not token:
                return

    def update(self, tenant_id: str, display_name: str | None, policy: Policy, unset: Sequence[str]) -> Tenant:
        """Set what is given, and the name unless it is None. `unset` names fields of a policy to set no more."""
        paths = [f"policy.{name}" for name in (*policy.names_set(), *unset)]
        if display_name is not None:
            paths.append("display_name")
        tenant = admin_pb2.Tenant(tenant_id=tenant_id, display_name=display_name or "", policy=policy.message())
        request = admin_pb2.UpdateTenantRequest(tenant=tenant, update_mask=FieldMask(paths=paths))
        return Tenant.of(self._call(self._stub.UpdateTenant, request).tenant)

    def suspend(self, tenant_id: str) -> Tenant:
        request = admin_pb2.SuspendTenantRequest(tenant_id=tenant_id)
        return Tenant.of(self._call(self._stub.SuspendTenant, request).tenant)

    def resume(self, tenant_id: str) -> Tenant:
        request = admin_pb2.ResumeTenantRequest(tenant_id=tenant_id)
        return Tenant.of(self._call(self._stub.ResumeTenant, request).tenant)

    def delete(self, tenant_id: str) -> DeletedTenant:
        request = admin_pb2.DeleteTenantRequest(tenant_id=tenant_id)
        answer = self._call(self._stub.DeleteTenant, request, _PURGE_TIMEOUT_S)
        return DeletedTenant(tenant_id, answer.deleted_api_keys, Purged.of(answer.purged))


class KeyCalls:
    def __init__(self, connection: Connection) -> None:
        self._call, self._stub = connection.call, connection.stub

    def create(
        self,
        tenant_id: str,
        display_name: str = "",
        expire_time: datetime | None = None,
        models: Sequence[str] = (),
        adapters: Sequence[str] = (),
        request_id: str = "",
    ) -> tuple[Key, str]:
        """Return the key's description and the key itself, which cannot be read again."""
        request = admin_pb2.CreateApiKeyRequest(
            tenant_id=tenant_id,
            display_name=display_name,
            expire_time=timestamp_of(expire_time),
            models=models,
            adapters=adapters,
            request_id=request_id,
        )
        answer = self._call(self._stub.CreateApiKey, request)
        return Key.of(answer.api_key), answer.secret

    def list(self, tenant_id: str) -> Iterator[Key]:
        token = ""
        while True:
            request = admin_pb2.ListApiKeysRequest(tenant_id=tenant_id, page_size=PAGE_SIZE, page_token=token)
            page = self._call(self._stub.ListApiKeys, request)
            yield from map(Key.of, page.api_keys)
            token = page.next_page_token
            if not token:
                return

    def rotate(
        self, key_id: str, overlap: timedelta | None, expire_time: datetime | None, request_id: str = ""
    ) -> tuple[Key, str, Key]:
        """Return the new key's description, the key itself, and the old key's description."""
        request = admin_pb2.RotateApiKeyRequest(
            key_id=key_id, overlap=duration_of(overlap), expire_time=timestamp_of(expire_time), request_id=request_id
        )
        answer = self._call(self._stub.RotateApiKey, request)
        return Key.of(answer.api_key), answer.secret, Key.of(answer.replaced)

    def revoke(self, key_id: str) -> Key:
        request = admin_pb2.RevokeApiKeyRequest(key_id=key_id)
        return Key.of(self._call(self._stub.RevokeApiKey, request).api_key)


class PrefixCalls:
    def __init__(self, connection: Connection) -> None:
        self._call, self._stub = connection.call, connection.stub

    def create(self, request: admin_pb2.CreatePublicPrefixRequest) -> PublicPrefix:
        return PublicPrefix.of(self._call(self._stub.CreatePublicPrefix, request).prefix)

    def list(self) -> list[PublicPrefix]:
        answer = self._call(self._stub.ListPublicPrefixes, admin_pb2.ListPublicPrefixesRequest())
        return [PublicPrefix.of(message) for message in answer.prefixes]

    def delete(self, prefix_id: str) -> Purged:
        request = admin_pb2.DeletePublicPrefixRequest(prefix_id=prefix_id)
        return Purged.of(self._call(self._stub.DeletePublicPrefix, request, _PURGE_TIMEOUT_S).purged)


class CacheCalls:
    def __init__(self, connection: Connection) -> None:
        self._call, self._stub = connection.call, connection.stub

    def invalidate(self, tenant_id: str, adapter: str = "", *, purge: bool = False) -> Invalidated:
        request = admin_pb2.InvalidateCacheRequest(tenant_id=tenant_id, adapter=adapter, purge=purge)
        answer = self._call(self._stub.InvalidateCache, request, _PURGE_TIMEOUT_S if purge else TIMEOUT_S)
        purged = Purged.of(answer.purged) if answer.HasField("purged") else None
        return Invalidated(tenant_id, adapter, answer.cache_version, purged)

    def stats(self, tenant_id: str = "") -> list[WorkerCache]:
        request = admin_pb2.GetCacheStatsRequest(tenant_id=tenant_id)
        return [WorkerCache.of(message) for message in self._call(self._stub.GetCacheStats, request).workers]
