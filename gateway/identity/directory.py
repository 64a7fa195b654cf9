"""What is known of a credential and its tenant at the moment, for each call."""

from dataclasses import dataclass
from typing import Protocol

from gateway.identity.stores import KeyRecord, KeyStore, Tenant, TenantStore


@dataclass(frozen=True, slots=True)
class KnownKey:
    key: KeyRecord
    tenant: Tenant


class Directory(Protocol):
    """Raises UnavailableError for what is neither known nor can be asked for."""

    async def find_key(self, key_id: str) -> KnownKey | None: ...

    async def find_tenant(self, tenant_id: str) -> Tenant | None: ...


class StoreDirectory:
    """Asks the stores for every call."""

    def __init__(self, tenants: TenantStore, keys: KeyStore) -> None:
        self._tenants = tenants
        self._keys = keys

    async def find_key(self, key_id: str) -> KnownKey | None:
        record = await self._keys.find(key_id)
        tenant = await self._tenants.get(record.api_key.tenant_id) if record else None
        return KnownKey(record, tenant) if record and tenant else None

    async def find_tenant(self, tenant_id: str) -> Tenant | None:
        return await self._tenants.get(tenant_id)
