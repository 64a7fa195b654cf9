"""Tenants and keys in this process's memory: for tests and for single gateways that may forget."""

from collections.abc import Sequence
from dataclasses import replace

from gateway.errors import AlreadyExistsError, NotFoundError
from gateway.identity.stores import ApiKey, KeyRecord, Tenant, first_cache_version


class MemoryTenantStore:
    """Tenants in a dictionary."""

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._adapter_versions: dict[tuple[str, str], int] = {}

    async def create(self, tenant_id: str, display_name: str, now: float) -> Tenant:
        if tenant_id in self._tenants:
            raise AlreadyExistsError(f"tenant {tenant_id!r} exists already")
        tenant = Tenant(tenant_id, display_name, now, first_cache_version(now))
        self._tenants[tenant_id] = tenant
        return tenant

    async def get(self, tenant_id: str) -> Tenant | None:
        tenant = self._tenants.get(tenant_id)
        versions = {adapter: bumps for (owner, adapter), bumps in self._adapter_versions.items() if owner == tenant_id}
        return replace(tenant, adapter_versions=versions) if tenant else None

    async def list_after(self, tenant_id: str, limit: int) -> Sequence[Tenant]:
        ids = sorted(known for known in self._tenants if known > tenant_id)
        return [self._tenants[known] for known in ids[:limit]]

    async def cache_version(self, tenant_id: str, adapter: str) -> int | None:
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            return None
        return tenant.cache_version + self._adapter_versions.get((tenant_id, adapter), 0)

    async def bump_cache_version(self, tenant_id: str, adapter: str) -> int | None:
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            return None
        if adapter:
            key = (tenant_id, adapter)
            self._adapter_versions[key] = self._adapter_versions.get(key, 0) + 1
        else:
            self._tenants[tenant_id] = replace(tenant, cache_version=tenant.cache_version + 1)
        return await self.cache_version(tenant_id, adapter)


class MemoryKeyStore:
    """Keys in a dictionary, for the tenants of one `MemoryTenantStore`."""

    def __init__(self, tenants: MemoryTenantStore) -> None:
        self._tenants = tenants
        self._records: dict[str, KeyRecord] = {}

    async def add(self, record: KeyRecord) -> None:
        api_key = record.api_key
        if await self._tenants.get(api_key.tenant_id) is None:
            raise NotFoundError("tenant", api_key.tenant_id)
        if api_key.key_id in self._records:
            raise AlreadyExistsError(f"key {api_key.key_id!r} exists already")
        self._records[api_key.key_id] = record

    async def find(self, key_id: str) -> KeyRecord | None:
        return self._records.get(key_id)

    async def list_of(self, tenant_id: str) -> Sequence[ApiKey]:
        keys = [record.api_key for record in self._records.values() if record.api_key.tenant_id == tenant_id]
        return sorted(keys, key=lambda key: (key.created_at, key.key_id))

    async def revoke(self, key_id: str, now: float) -> ApiKey | None:
        record = self._records.get(key_id)
        if record is None:
            return None
        if record.api_key.revoked_at is None:
            record = replace(record, api_key=replace(record.api_key, revoked_at=now))
            self._records[key_id] = record
        return record.api_key
