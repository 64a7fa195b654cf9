"""API keys in Redis. `gateway.identity.redis_store` says where they lie there."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from redis.asyncio import Redis

from gateway.errors import AlreadyExistsError, NotFoundError
from gateway.identity.changes import CHANGED, CHANGES, LUA_CHANGED, key_subject
from gateway.identity.reach import StoreReach
from gateway.identity.redis_tenants import api_key_key, api_keys_key, ms, pairs, tenant_key
from gateway.identity.stores import ApiKey, KeyRecord, key_revoked

# The place of a key among the tenant's: its millisecond, then how many there are of the same one. Exact in a double.
_LUA_ADD = """
local function add(tenant, key, keys, id, hash, created_ms, fields)
    if redis.call('EXISTS', tenant) == 0 then return 'no tenant' end
    local there = redis.call('HGET', key, 'secret_hash')
    if there then return there == hash and 'there' or 'exists' end
    local first = created_ms * 1000
    local same = redis.call('ZCOUNT', keys, string.format('%.0f', first), string.format('%.0f', first + 999))
    redis.call('HSET', key, unpack(fields))
    redis.call('ZADD', keys, string.format('%.0f', first + math.min(same, 999)), id)
    return 'added'
end
"""
# KEYS: tenant, key, the tenant's keys, changes, changed. ARGV: id, hash, created_ms, subject, fields of the key.
_ADD = (
    LUA_CHANGED
    + _LUA_ADD
    + """
local outcome = add(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3], {unpack(ARGV, 5)})
if outcome == 'added' then changed(KEYS[4], KEYS[5], ARGV[4]) end
return outcome
"""
)
# KEYS: as above, and the old key. ARGV: id, hash, created_ms, subject of the old key, when that expires, fields.
_ROTATE = (
    LUA_CHANGED
    + _LUA_ADD
    + """
local old = KEYS[6]
if redis.call('EXISTS', old) == 0 then return {'no key'} end
if redis.call('HGET', KEYS[2], 'secret_hash') ~= ARGV[2] and redis.call('HEXISTS', old, 'revoked_ms') == 1 then
    return {'revoked'}
end
local outcome = add(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3], {unpack(ARGV, 6)})
if outcome == 'added' then
    local expires = redis.call('HGET', old, 'expires_ms')
    if not expires or tonumber(expires) > tonumber(ARGV[5]) then
        redis.call('HSET', old, 'expires_ms', ARGV[5])
    end
    changed(KEYS[4], KEYS[5], ARGV[4])
end
return {outcome, redis.call('HGETALL', old)}
"""
)
_REVOKE = (
    LUA_CHANGED
    + """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
if redis.call('HSETNX', KEYS[1], 'revoked_ms', ARGV[2]) == 1 then changed(KEYS[2], KEYS[3], ARGV[1]) end
return redis.call('HGETALL', KEYS[1])
"""
)
# KEYS: the tenant's keys. ARGV: the one before the first, or nothing, and how many.
_AFTER = """
local first = 0
if ARGV[1] ~= '' then
    local rank = redis.call('ZRANK', KEYS[1], ARGV[1])
    if not rank then return {} end
    first = rank + 1
end
return redis.call('ZRANGE', KEYS[1], first, first + ARGV[2] - 1)
"""


class RedisKeyStore:
    """Implements KeyStore."""

    def __init__(self, client: Redis, reach: StoreReach) -> None:
        self._client = client
        self._reach = reach
        self._add = client.register_script(_ADD)
        self._rotate = client.register_script(_ROTATE)
        self._revoke = client.register_script(_REVOKE)
        self._after = client.register_script(_AFTER)

    async def add(self, record: KeyRecord) -> None:
        key = record.api_key
        outcome = await self._reach.call(
            lambda: self._add(
                keys=[
                    tenant_key(key.tenant_id),
                    api_key_key(key.key_id),
                    api_keys_key(key.tenant_id),
                    CHANGES,
                    CHANGED,
                ],
                args=[*_head(record), key_subject(key.key_id), *_row(record)],
            )
        )
        _check(outcome, key)

    async def find(self, key_id: str) -> KeyRecord | None:
        row: Any = await self._reach.call(lambda: self._client.hgetall(api_key_key(key_id)))
        return read_key(key_id, row)

    async def list_after(self, tenant_id: str, key_id: str, limit: int) -> Sequence[ApiKey]:
        ids: Any = await self._reach.call(lambda: self._after(keys=[api_keys_key(tenant_id)], args=[key_id, limit]))

        async def read() -> Any:
            async with self._client.pipeline(transaction=False) as pipeline:
                for each in ids:
                    pipeline.hgetall(api_key_key(each))
                return await pipeline.execute()

        rows = await self._reach.call(read)
        records = [read_key(key_id, row) for key_id, row in zip(ids, rows, strict=True)]
        return [record.api_key for record in records if record is not None]

    async def rotate(self, record: KeyRecord, expires_at: float) -> ApiKey:
        key, old = record.api_key, record.api_key.replaces
        own = [tenant_key(key.tenant_id), api_key_key(key.key_id), api_keys_key(key.tenant_id)]
        answer: Any = await self._reach.call(
            lambda: self._rotate(
                keys=[*own, CHANGES, CHANGED, api_key_key(old)],
                args=[*_head(record), key_subject(old), ms(expires_at), *_row(record)],
            )
        )
        _check(answer[0], key)
        replaced = read_key(old, pairs(answer[1]))
        assert replaced is not None  # the script has looked
        return replaced.api_key

    async def revoke(self, key_id: str, now: float) -> ApiKey | None:
        row: Any = await self._reach.call(
            lambda: self._revoke(keys=[api_key_key(key_id), CHANGES, CHANGED], args=[key_subject(key_id), ms(now)])
        )
        record = read_key(key_id, pairs(row or ()))
        return record.api_key if record else None


def read_key(key_id: str, row: Mapping[str, str]) -> KeyRecord | None:
    if not row:
        return None
    key = ApiKey(
        key_id,
        row["tenant_id"],
        row["display_name"],
        int(row["created_ms"]) / 1000,
        _time(row.get("revoked_ms")),
        _time(row.get("expires_ms")),
        tuple(json.loads(row.get("models", "[]"))),
        tuple(json.loads(row.get("adapters", "[]"))),
        row.get("replaces", ""),
    )
    return KeyRecord(key, bytes.fromhex(row["secret_hash"]))


def _time(text: str | None) -> float | None:
    return None if text is None else int(text) / 1000


def _head(record: KeyRecord) -> list[Any]:
    return [record.api_key.key_id, record.secret_hash.hex(), ms(record.api_key.created_at)]


def _row(record: KeyRecord) -> list[Any]:
    """Return names and values of the key's fields in turn."""
    key = record.api_key
    row: dict[str, Any] = {
        "tenant_id": key.tenant_id,
        "secret_hash": record.secret_hash.hex(),
        "display_name": key.display_name,
        "created_ms": ms(key.created_at),
        "models": json.dumps(key.models),
        "adapters": json.dumps(key.adapters),
        "replaces": key.replaces,
    }
    if key.expires_at is not None:
        row["expires_ms"] = ms(key.expires_at)
    if key.revoked_at is not None:
        row["revoked_ms"] = ms(key.revoked_at)
    return list(itertools.chain.from_iterable(row.items()))


def _check(outcome: str, key: ApiKey) -> None:
    if outcome == "no tenant":
        raise NotFoundError("tenant", key.tenant_id)
    if outcome == "no key":
        raise NotFoundError("key", key.replaces)
    if outcome == "revoked":
        raise key_revoked(key.replaces)
    if outcome == "exists":
        raise AlreadyExistsError(f"key {key.key_id!r} exists already")
