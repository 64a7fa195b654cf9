"""Documents in Redis that all gateways of a deployment share: read whole, written only by those who have seen all.

    {radixgate}:NAME          hash     id -> JSON document
    {radixgate}:NAME-stamp    string   another one after each change

A change raises `{radixgate}:changes`, so that every gateway reads again.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from gateway.identity.changes import CHANGES
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import PREFIX

_READ = """
local stamp = redis.call('GET', KEYS[1]) or ''
if stamp == ARGV[1] then return {stamp} end
return {stamp, redis.call('HGETALL', KEYS[2])}
"""
_WRITE = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
for i = 3, #ARGV, 2 do
    if ARGV[i + 1] == '' then
        redis.call('HDEL', KEYS[2], ARGV[i])
    else
        redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
    end
end
redis.call('INCR', KEYS[3])
return 1
"""


@dataclass(frozen=True, slots=True)
class Shelved:
    """All documents at one moment."""

    stamp: str = ""  # "": nothing was ever written
    documents: Mapping[str, str] = field(default_factory=dict)


class Shelf:
    """One kind of documents. Every method raises UnavailableError when Redis is away.

    Invariant: what is returned is never older than what a read that had begun before it has returned.
    """

    def __init__(self, client: Redis, reach: StoreReach, name: str) -> None:
        self._reach = reach
        self._keys = [f"{PREFIX}{name}-stamp", f"{PREFIX}{name}"]
        self._read = client.register_script(_READ)
        self._write = client.register_script(_WRITE)
        self._latest: Shelved | None = None
        self._num_begun = 0
        self._latest_began = 0  # the number of the read that has brought `_latest`

    async def read(self) -> Shelved:
        """Return what is there now: the same object as the last time where nothing has changed."""
        known = self._latest
        self._num_begun += 1
        number = self._num_begun
        stamp = known.stamp if known is not None else "?"
        told: Any = await self._reach.call(lambda: self._read(keys=self._keys, args=[stamp]))
        if known is not None and told[0] == stamp:
            read = known
        else:
            flat = told[1]
            read = Shelved(told[0], dict(zip(flat[::2], flat[1::2], strict=True)))
        if self._latest is None or number > self._latest_began:
            self._latest, self._latest_began = read, number
        return self._latest

    async def write(self, seen: Shelved, changes: Mapping[str, str | None]) -> bool:
        """Put documents, or with None take them away, all at once. False, and no change, where `seen` is outdated."""
        pairs = [text for key, document in changes.items() for text in (key, document or "")]
        args = [seen.stamp, secrets.token_hex(8), *pairs]
        return bool(await self._reach.call(lambda: self._write(keys=[*self._keys, CHANGES], args=args)))
