"""What is known of a credential and its tenant at the moment, for each call."""

from dataclasses import dataclass
from typing import Any, Protocol

from redis.asyncio import Redis

from gateway.identity.reach import StoreReach
from gateway.identity.redis_keys import read_key
from gateway.identity.redis_tenants import api_key_key, pairs, read_tenant, tenant_key, versions_key
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
    """Asks stores of any kind."""

    def __init__(self, tenants: TenantStore, keys: KeyStore) -> None:
        self._tenants = tenants
        self._keys = keys

    async def find_key(self, key_id: str) -> KnownKey | None:
        record = await self._keys.find(key_id)
        tenant = await self._tenants.get(record.api_key.tenant_id) if record else None
        return KnownKey(record, tenant) if record and tenant else None

    async def find_tenant(self, tenant_id: str) -> Tenant | None:
        return await self._tenants.get(tenant_id)


# Which tenant it is stands in the key's record: its hashes cannot be among KEYS, and lie on the same node.
_FIND_KEY = """
local key = redis.call('HGETALL', KEYS[1])
local tenant_id = redis.call('HGET', KEYS[1], 'tenant_id')
if not tenant_id then return false end
return {key, tenant_id, redis.call('HGETALL', ARGV[1] .. tenant_id), redis.call('HGETALL', ARGV[2] .. tenant_id)}
"""


class RedisDirectory:
    """Asks Redis, in one round trip, of one moment: key, tenant and cache versions belong together."""

    def __init__(self, client: Redis, reach: StoreReach) -> None:
        self._client = client
        self._reach = reach
        self._find_key = client.register_script(_FIND_KEY)

    async def find_key(self, key_id: str) -> KnownKey | None:
        row: Any = await self._reach.call(
            lambda: self._find_key(keys=[api_key_key(key_id)], args=[tenant_key(""), versions_key("")])
        )
        if row is None:
            return None
        record = read_key(key_id, pairs(row[0]))
        tenant = read_tenant(row[1], pairs(row[2]), pairs(row[3]))
        return KnownKey(record, tenant) if record and tenant else None

    async def find_tenant(self, tenant_id: str) -> Tenant | None:
        async def read() -> Any:
            async with self._client.pipeline(transaction=True) as pipeline:
                pipeline.hgetall(tenant_key(tenant_id))
                pipeline.hgetall(versions_key(tenant_id))
                return await pipeline.execute()

        return read_tenant(tenant_id, *await self._reach.call(read))
