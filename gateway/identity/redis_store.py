"""Tenants and keys in Redis, shared by all gateways of a deployment.

All keys carry the hash tag {radixgate}, so that each script finds its keys on one node of a Redis Cluster:

    {radixgate}:tenants              zset   tenant ids, all with score 0: ordered by id
    {radixgate}:tenant:ID            hash   display_name, created_ms, cache_version
    {radixgate}:cache-versions:ID    hash   adapter -> bumps of this adapter
    {radixgate}:api-key:KEYID        hash   tenant_id, secret_hash (hex), display_name, created_ms, [revoked_ms]
    {radixgate}:api-keys:ID          zset   the tenant's key ids by time of creation
    {radixgate}:extra-key-secret     string (hex) see `gateway.identity.extra_keys`
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from gateway.config import RedisConfig
from gateway.errors import AlreadyExistsError, NotFoundError, UnavailableError
from gateway.identity.stores import ApiKey, KeyRecord, Tenant, first_cache_version

_log = structlog.get_logger(__name__)

PREFIX = "{radixgate}:"

_CREATE_TENANT = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'display_name', ARGV[2], 'created_ms', ARGV[3], 'cache_version', ARGV[4])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
return 1
"""
_BUMP_TENANT = """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
return redis.call('HINCRBY', KEYS[1], 'cache_version', 1)
"""
_BUMP_ADAPTER = """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
return redis.call('HGET', KEYS[1], 'cache_version') + redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
"""
_ADD_KEY = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 'no tenant' end
if redis.call('EXISTS', KEYS[2]) == 1 then return 'exists' end
redis.call('HSET', KEYS[2], 'tenant_id', ARGV[1], 'secret_hash', ARGV[3],
    'display_name', ARGV[4], 'created_ms', ARGV[5])
redis.call('ZADD', KEYS[3], ARGV[5], ARGV[2])
return 'added'
"""
_REVOKE_KEY = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSETNX', KEYS[1], 'revoked_ms', ARGV[1])
return 1
"""


def connect(config: RedisConfig) -> Redis:
    """Return a client that connects when first used and again whenever the server is back."""
    if config.url is None:
        raise ValueError("redis.url is not set")
    pool = BlockingConnectionPool.from_url(
        config.url,
        decode_responses=True,
        max_connections=config.max_connections,
        timeout=config.timeout_s,
        socket_timeout=config.timeout_s,
        socket_connect_timeout=config.timeout_s,
        # Once more at once: a connection that died while idle is noticed only when it is used.
        retry=Retry(ConstantBackoff(0), 1, supported_errors=(RedisConnectionError,)),
    )
    return Redis.from_pool(pool)


@contextmanager
def unavailable_when_away() -> Iterator[None]:
    """Translate every failure to talk to Redis."""
    try:
        yield
    except (RedisError, OSError) as error:
        _log.warning("redis request failed", error=type(error).__name__, detail=str(error)[:200])
        raise UnavailableError(
            "the store of tenants and keys cannot be reached", reason="IDENTITY_STORE_UNAVAILABLE"
        ) from error


class RedisTenantStore:
    """Tenants in Redis."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._create = client.register_script(_CREATE_TENANT)
        self._bump_tenant = client.register_script(_BUMP_TENANT)
        self._bump_adapter = client.register_script(_BUMP_ADAPTER)

    async def create(self, tenant_id: str, display_name: str, now: float) -> Tenant:
        version = first_cache_version(now)
        with unavailable_when_away():
            created = await self._create(
                keys=[_tenant(tenant_id), PREFIX + "tenants"], args=[tenant_id, display_name, _ms(now), version]
            )
        if not created:
            raise AlreadyExistsError(f"tenant {tenant_id!r} exists already")
        return Tenant(tenant_id, display_name, _ms(now) / 1000, version)

    async def get(self, tenant_id: str) -> Tenant | None:
        with unavailable_when_away():
            async with self._client.pipeline(transaction=True) as pipeline:
                pipeline.hgetall(_tenant(tenant_id))
                pipeline.hgetall(_versions(tenant_id))
                fields, versions = await pipeline.execute()
        return _read_tenant(tenant_id, fields, versions)

    async def list_after(self, tenant_id: str, limit: int) -> Sequence[Tenant]:
        start = f"({tenant_id}" if tenant_id else "-"
        with unavailable_when_away():
            ids: Any = await self._client.zrangebylex(PREFIX + "tenants", start, "+", 0, limit)
            async with self._client.pipeline(transaction=False) as pipeline:
                for known in ids:
                    pipeline.hgetall(_tenant(known))
                rows = await pipeline.execute()
        tenants = [_read_tenant(known, fields) for known, fields in zip(ids, rows, strict=True)]
        return [tenant for tenant in tenants if tenant is not None]

    async def cache_version(self, tenant_id: str, adapter: str) -> int | None:
        with unavailable_when_away():
            async with self._client.pipeline(transaction=True) as pipeline:
                pipeline.hget(_tenant(tenant_id), "cache_version")
                pipeline.hget(_versions(tenant_id), adapter)
                own, of_adapter = await pipeline.execute()
        return None if own is None else int(own) + int(of_adapter or 0)

    async def bump_cache_version(self, tenant_id: str, adapter: str) -> int | None:
        with unavailable_when_away():
            if adapter:
                version = await self._bump_adapter(keys=[_tenant(tenant_id), _versions(tenant_id)], args=[adapter])
            else:
                version = await self._bump_tenant(keys=[_tenant(tenant_id)])
        return None if version is None else int(version)


class RedisKeyStore:
    """API keys in Redis."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._add = client.register_script(_ADD_KEY)
        self._revoke = client.register_script(_REVOKE_KEY)

    async def add(self, record: KeyRecord) -> None:
        key = record.api_key
        with unavailable_when_away():
            outcome = await self._add(
                keys=[_tenant(key.tenant_id), _key(key.key_id), _keys_of(key.tenant_id)],
                args=[key.tenant_id, key.key_id, record.secret_hash.hex(), key.display_name, _ms(key.created_at)],
            )
        if outcome == "no tenant":
            raise NotFoundError("tenant", key.tenant_id)
        if outcome == "exists":
            raise AlreadyExistsError(f"key {key.key_id!r} exists already")

    async def find(self, key_id: str) -> KeyRecord | None:
        with unavailable_when_away():
            fields: Any = await self._client.hgetall(_key(key_id))
        return _read_key(key_id, fields)

    async def list_of(self, tenant_id: str) -> Sequence[ApiKey]:
        with unavailable_when_away():
            ids: Any = await self._client.zrange(_keys_of(tenant_id), 0, -1)
            async with self._client.pipeline(transaction=False) as pipeline:
                for key_id in ids:
                    pipeline.hgetall(_key(key_id))
                rows = await pipeline.execute()
        records = [_read_key(key_id, fields) for key_id, fields in zip(ids, rows, strict=True)]
        return [record.api_key for record in records if record is not None]

    async def revoke(self, key_id: str, now: float) -> ApiKey | None:
        with unavailable_when_away():
            await self._revoke(keys=[_key(key_id)], args=[_ms(now)])
        record = await self.find(key_id)
        return record.api_key if record else None


def _tenant(tenant_id: str) -> str:
    return f"{PREFIX}tenant:{tenant_id}"


def _versions(tenant_id: str) -> str:
    return f"{PREFIX}cache-versions:{tenant_id}"


def _key(key_id: str) -> str:
    return f"{PREFIX}api-key:{key_id}"


def _keys_of(tenant_id: str) -> str:
    return f"{PREFIX}api-keys:{tenant_id}"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _read_tenant(tenant_id: str, fields: Mapping[str, Any], versions: Mapping[str, str] | None = None) -> Tenant | None:
    if not fields:
        return None
    return Tenant(
        tenant_id,
        fields["display_name"],
        int(fields["created_ms"]) / 1000,
        int(fields["cache_version"]),
        adapter_versions={adapter: int(bumps) for adapter, bumps in (versions or {}).items()},
    )


def _read_key(key_id: str, fields: Mapping[str, Any]) -> KeyRecord | None:
    if not fields:
        return None
    revoked = fields.get("revoked_ms")
    key = ApiKey(
        key_id,
        fields["tenant_id"],
        fields["display_name"],
        int(fields["created_ms"]) / 1000,
        int(revoked) / 1000 if revoked else None,
    )
    return KeyRecord(key, bytes.fromhex(fields["secret_hash"]))
