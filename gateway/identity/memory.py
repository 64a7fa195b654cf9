"""Tenants and keys in this process's memory: for tests and for single gateways that may forget."""

from collections.abc import Sequence
from dataclasses import replace

from gateway.errors import AlreadyExistsError, NotFoundError
from gateway.identity.stores import (
    ApiKey,
    KeyRecord,
    Tenant,
    TenantChange,
    TenantState,
    first_cache_version,
    key_revoked,
)
from gateway.policy import TenantPolicy


class MemoryTenantStore:
    """Tenants and the keys that they own, in dictionaries."""

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._marks: dict[str, str] = {}
        self._deleted: dict[str, int] = {}  # id -> the highest cache version that was in use under it
        self.records: dict[str, KeyRecord] = {}  # by key id, in the order in which they were added

    async def create(
        self, tenant_id: str, display_name: str, now: float, policy: TenantPolicy | None = None, mark: str = ""
    ) -> Tenant:
        if tenant_id in self._tenants:
            if mark and self._marks[tenant_id] == mark:
                return self._tenants[tenant_id]
            raise AlreadyExistsError(f"tenant {tenant_id!r} exists already")
        version = first_cache_version(now, self._deleted.get(tenant_id, 0))
        tenant = Tenant(tenant_id, display_name, now, version, policy=policy or TenantPolicy())
        self._tenants[tenant_id] = tenant
        self._marks[tenant_id] = mark
        return tenant

    async def get(self, tenant_id: str) -> Tenant | None:
        return self._tenants.get(tenant_id)

    async def list_after(self, tenant_id: str, limit: int) -> Sequence[Tenant]:
        ids = sorted(known for known in self._tenants if known > tenant_id)
        return [self._tenants[known] for known in ids[:limit]]

    async def update(self, tenant_id: str, change: TenantChange) -> Tenant | None:
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            return None
        name = tenant.display_name if change.display_name is None else change.display_name
        return self._put(replace(tenant, display_name=name, policy=replace(tenant.policy, **change.policy)))

    async def set_state(self, tenant_id: str, state: TenantState) -> Tenant | None:
        tenant = self._tenants.get(tenant_id)
        return self._put(replace(tenant, state=state)) if tenant else None

    async def delete(self, tenant_id: str, created_at: float | None = None) -> int | None:
        tenant = self._tenants.get(tenant_id)
        if tenant is None or created_at not in {None, tenant.created_at}:
            return None
        del self._tenants[tenant_id]
        self._deleted[tenant_id] = tenant.cache_version + max(tenant.adapter_versions.values(), default=0)
        owned = [key_id for key_id, record in self.records.items() if record.api_key.tenant_id == tenant_id]
        for key_id in owned:
            del self.records[key_id]
        return len(owned)

    async def cache_version(self, tenant_id: str, adapter: str) -> int | None:
        tenant = self._tenants.get(tenant_id)
        return None if tenant is None else tenant.effective_cache_version(adapter)

    async def bump_cache_version(self, tenant_id: str, adapter: str) -> int | None:
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            return None
        if adapter:
            versions = {**tenant.adapter_versions, adapter: tenant.adapter_versions.get(adapter, 0) + 1}
            tenant = self._put(replace(tenant, adapter_versions=versions))
        else:
            tenant = self._put(replace(tenant, cache_version=tenant.cache_version + 1))
        return tenant.effective_cache_version(adapter)

    def _put(self, tenant: Tenant) -> Tenant:
        self._tenants[tenant.tenant_id] = tenant
        return tenant


class MemoryKeyStore:
    """The keys of one `MemoryTenantStore`."""

    def __init__(self, tenants: MemoryTenantStore) -> None:
        self._tenants = tenants

    async def add(self, record: KeyRecord) -> None:
        await self._add(record)

    async def find(self, key_id: str) -> KeyRecord | None:
        return self._tenants.records.get(key_id)

    async def list_after(self, tenant_id: str, key_id: str, limit: int) -> Sequence[ApiKey]:
        records = self._tenants.records.values()
        keys = [record.api_key for record in records if record.api_key.tenant_id == tenant_id]
        keys.sort(key=lambda key: key.created_at)
        places = {"": 0, **{key.key_id: place for place, key in enumerate(keys, 1)}}
        first = places.get(key_id, len(keys))
        return keys[first : first + limit]

    async def rotate(self, record: KeyRecord, expires_at: float) -> ApiKey:
        key = record.api_key
        old = self._tenants.records.get(key.replaces)
        if old is None:
            raise NotFoundError("key", key.replaces)
        is_new = key.key_id not in self._tenants.records
        if is_new and old.api_key.revoked_at is not None:
            raise key_revoked(key.replaces)
        await self._add(record)
        if is_new and (old.api_key.expires_at is None or old.api_key.expires_at > expires_at):
            old = self._put(replace(old, api_key=replace(old.api_key, expires_at=expires_at)))
        return old.api_key

    async def revoke(self, key_id: str, now: float) -> ApiKey | None:
        record = self._tenants.records.get(key_id)
        if record is None:
            return None
        if record.api_key.revoked_at is None:
            record = self._put(replace(record, api_key=replace(record.api_key, revoked_at=now)))
        return record.api_key

    async def _add(self, record: KeyRecord) -> None:
        key = record.api_key
        if await self._tenants.get(key.tenant_id) is None:
            raise NotFoundError("tenant", key.tenant_id)
        there = self._tenants.records.get(key.key_id)
        if there is None:
            self._put(record)
        elif there.secret_hash != record.secret_hash:
            raise AlreadyExistsError(f"key {key.key_id!r} exists already")

    def _put(self, record: KeyRecord) -> KeyRecord:
        self._tenants.records[record.api_key.key_id] = record
        return record
