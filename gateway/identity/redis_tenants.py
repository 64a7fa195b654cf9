"""Tenants in Redis. `gateway.identity.redis_store` says where they lie there."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from redis.asyncio import Redis

from gateway.errors import AlreadyExistsError, InternalError
from gateway.identity.changes import CHANGED, CHANGES, LUA_CHANGED, tenant_subject
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import PREFIX
from gateway.identity.stores import Tenant, TenantChange, TenantState, first_cache_version
from gateway.policy import TenantPolicy

TENANTS = PREFIX + "tenants"
_DELETED = PREFIX + "deleted-tenants"
_DELETE_ATTEMPTS = 100  # each fails only because a key was made meanwhile

# KEYS: tenant, versions, then what a script needs of its own, with changes and changed at the end.
_CREATE = (
    LUA_CHANGED
    + """
if redis.call('EXISTS', KEYS[1]) == 1 then
    if ARGV[3] == '' or redis.call('HGET', KEYS[1], 'mark') ~= ARGV[3] then return false end
else
    local before = tonumber(redis.call('HGET', KEYS[4], ARGV[1]) or 0)
    local version = math.max(tonumber(ARGV[4]), before + 1)
    redis.call('HSET', KEYS[1], 'cache_version', string.format('%.0f', version), 'mark', ARGV[3], unpack(ARGV, 5))
    redis.call('ZADD', KEYS[3], 0, ARGV[1])
    changed(KEYS[5], KEYS[6], ARGV[2])
end
return {redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}
"""
)
# ARGV: subject, number of fields to set, each with its value, then the fields to remove.
_UPDATE = (
    LUA_CHANGED
    + """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local last = 2 + 2 * ARGV[2]
for i = 3, last, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
for i = last + 1, #ARGV do redis.call('HDEL', KEYS[1], ARGV[i]) end
changed(KEYS[3], KEYS[4], ARGV[1])
return {redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}
"""
)
# KEYS: tenant, versions, tenants, deleted, the tenant's keys, changes, changed, each key.
# ARGV: id, subject, when the tenant was created or nothing, key ids.
_DELETE = (
    LUA_CHANGED
    + """
local version = redis.call('HGET', KEYS[1], 'cache_version')
if not version or (ARGV[3] ~= '' and redis.call('HGET', KEYS[1], 'created_ms') ~= ARGV[3]) then return false end
local num_keys = #ARGV - 3
if redis.call('ZCARD', KEYS[5]) ~= num_keys then return 'others' end
for i = 4, #ARGV do
    if not redis.call('ZSCORE', KEYS[5], ARGV[i]) then return 'others' end
end
local bumps = 0
for _, each in ipairs(redis.call('HVALS', KEYS[2])) do bumps = math.max(bumps, tonumber(each)) end
redis.call('HSET', KEYS[4], ARGV[1], string.format('%.0f', version + bumps))
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('DEL', KEYS[1], KEYS[2], KEYS[5])
for i = 8, #KEYS do redis.call('DEL', KEYS[i]) end
for i = 4, #ARGV do changed(KEYS[6], KEYS[7], 'key ' .. ARGV[i]) end
changed(KEYS[6], KEYS[7], ARGV[2])
return num_keys
"""
)
_BUMP = (
    LUA_CHANGED
    + """
local version = redis.call('HGET', KEYS[1], 'cache_version')
if not version then return false end
changed(KEYS[3], KEYS[4], ARGV[1])
if ARGV[2] == '' then return redis.call('HINCRBY', KEYS[1], 'cache_version', 1) end
return version + redis.call('HINCRBY', KEYS[2], ARGV[2], 1)
"""
)


class RedisTenantStore:
    """Implements TenantStore."""

    def __init__(self, client: Redis, reach: StoreReach) -> None:
        self._client = client
        self._reach = reach
        self._create = client.register_script(_CREATE)
        self._update = client.register_script(_UPDATE)
        self._delete = client.register_script(_DELETE)
        self._bump = client.register_script(_BUMP)

    async def create(
        self, tenant_id: str, display_name: str, now: float, policy: TenantPolicy | None = None, mark: str = ""
    ) -> Tenant:
        chosen, _ = _policy_fields({} if policy is None else {name: getattr(policy, name) for name in _POLICY_NAMES})
        row = {"display_name": display_name, "created_ms": ms(now), **chosen}
        found = await self._reach.call(
            lambda: self._create(
                keys=[tenant_key(tenant_id), versions_key(tenant_id), TENANTS, _DELETED, CHANGES, CHANGED],
                args=[
                    tenant_id,
                    tenant_subject(tenant_id),
                    mark,
                    first_cache_version(now),
                    *itertools.chain.from_iterable(row.items()),
                ],
            )
        )
        tenant = _tenant_of(tenant_id, found)
        if tenant is None:
            raise AlreadyExistsError(f"tenant {tenant_id!r} exists already")
        return tenant

    async def get(self, tenant_id: str) -> Tenant | None:
        found = await self._read([tenant_id])
        return found[0]

    async def list_after(self, tenant_id: str, limit: int) -> Sequence[Tenant]:
        start = f"({tenant_id}" if tenant_id else "-"
        ids: Any = await self._reach.call(lambda: self._client.zrangebylex(TENANTS, start, "+", 0, limit))
        return [tenant for tenant in await self._read(ids) if tenant is not None]

    async def update(self, tenant_id: str, change: TenantChange) -> Tenant | None:
        chosen, removed = _policy_fields(change.policy)
        if change.display_name is not None:
            chosen["display_name"] = change.display_name
        return await self._change(tenant_id, chosen, removed)

    async def set_state(self, tenant_id: str, state: TenantState) -> Tenant | None:
        return await self._change(tenant_id, {"state": state.value}, [])

    async def delete(self, tenant_id: str, created_at: float | None = None) -> int | None:
        for _ in range(_DELETE_ATTEMPTS):
            key_ids: Any = await self._reach.call(lambda: self._client.zrange(api_keys_key(tenant_id), 0, -1))
            deleted = await self._try_delete(tenant_id, created_at, key_ids)
            if deleted != "others":
                return None if deleted is None else int(deleted)
        raise InternalError(f"keys of tenant {tenant_id!r} are made faster than they can be deleted")

    async def cache_version(self, tenant_id: str, adapter: str) -> int | None:
        tenant = await self.get(tenant_id)
        return None if tenant is None else tenant.effective_cache_version(adapter)

    async def bump_cache_version(self, tenant_id: str, adapter: str) -> int | None:
        version = await self._reach.call(
            lambda: self._bump(
                keys=[tenant_key(tenant_id), versions_key(tenant_id), CHANGES, CHANGED],
                args=[tenant_subject(tenant_id), adapter],
            )
        )
        return None if version is None else int(version)

    async def _read(self, tenant_ids: Sequence[str]) -> list[Tenant | None]:
        async def read() -> Any:
            async with self._client.pipeline(transaction=True) as pipeline:
                for tenant_id in tenant_ids:
                    pipeline.hgetall(tenant_key(tenant_id))
                    pipeline.hgetall(versions_key(tenant_id))
                return await pipeline.execute()

        rows = await self._reach.call(read)
        return [read_tenant(each, *rows[2 * i : 2 * i + 2]) for i, each in enumerate(tenant_ids)]

    async def _change(self, tenant_id: str, chosen: Mapping[str, str], removed: Sequence[str]) -> Tenant | None:
        found = await self._reach.call(
            lambda: self._update(
                keys=[tenant_key(tenant_id), versions_key(tenant_id), CHANGES, CHANGED],
                args=[
                    tenant_subject(tenant_id),
                    len(chosen),
                    *itertools.chain.from_iterable(chosen.items()),
                    *removed,
                ],
            )
        )
        return _tenant_of(tenant_id, found)

    async def _try_delete(self, tenant_id: str, created_at: float | None, key_ids: Sequence[str]) -> Any:
        created = "" if created_at is None else ms(created_at)
        own = [tenant_key(tenant_id), versions_key(tenant_id), TENANTS, _DELETED, api_keys_key(tenant_id)]
        return await self._reach.call(
            lambda: self._delete(
                keys=[*own, CHANGES, CHANGED, *(api_key_key(key_id) for key_id in key_ids)],
                args=[tenant_id, tenant_subject(tenant_id), created, *key_ids],
            )
        )


def tenant_key(tenant_id: str) -> str:
    return f"{PREFIX}tenant:{tenant_id}"


def versions_key(tenant_id: str) -> str:
    return f"{PREFIX}cache-versions:{tenant_id}"


def api_key_key(key_id: str) -> str:
    return f"{PREFIX}api-key:{key_id}"


def api_keys_key(tenant_id: str) -> str:
    return f"{PREFIX}api-keys:{tenant_id}"


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def pairs(flat: Sequence[str] | Mapping[str, str]) -> Mapping[str, str]:
    """Return a hash as a script returns it: names and values in turn."""
    return flat if isinstance(flat, Mapping) else dict(zip(flat[::2], flat[1::2], strict=True))


def read_tenant(tenant_id: str, row: Mapping[str, str], versions: Mapping[str, str]) -> Tenant | None:
    if not row:
        return None
    policy: dict[str, Any] = {
        name: tuple(value) if isinstance(value := json.loads(row[field]), list) else value
        for name in _POLICY_NAMES
        if (field := f"policy.{name}") in row
    }
    return Tenant(
        tenant_id,
        row["display_name"],
        int(row["created_ms"]) / 1000,
        int(row["cache_version"]),
        TenantState(row.get("state", TenantState.ACTIVE.value)),
        TenantPolicy(**policy),
        {adapter: int(bumps) for adapter, bumps in versions.items()},
    )


_POLICY_NAMES = [each.name for each in fields(TenantPolicy)]


def _policy_fields(policy: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields to set, and those to remove."""
    unset = [f"policy.{name}" for name, value in policy.items() if value is None or value == ()]
    chosen = {f"policy.{name}": json.dumps(value) for name, value in policy.items() if f"policy.{name}" not in unset}
    return chosen, unset


def _tenant_of(tenant_id: str, found: Any) -> Tenant | None:
    return read_tenant(tenant_id, pairs(found[0]), pairs(found[1])) if found else None
