"""The extra keys of this deployment: who may share KV with whom, as 16 bytes that nobody can guess."""

import secrets
from typing import Any, Protocol

from redis.asyncio import Redis

from gateway.identity.adapters import Adapter
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import PREFIX
from gateway.identity.stores import Tenant
from hicache.keys import ExtraKey

_SECRET_BYTES = 32


class SecretSource(Protocol):
    """Where the deployment's secret comes from."""

    async def secret(self) -> bytes:
        """Return the secret, the same to every gateway. Raises UnavailableError."""
        ...


class ConfiguredSecret:
    """A secret from the configuration, its UTF-8 as it is."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    async def secret(self) -> bytes:
        return self._secret


class RedisSecret:
    """A secret that the first gateway of the deployment makes and all of them keep in Redis.

    It is read once. Should Redis lose it, gateways that know it go on with it and new ones make another: they share
    less, and never too much.
    """

    def __init__(self, client: Redis, reach: StoreReach) -> None:
        self._client = client
        self._reach = reach
        self._secret: bytes | None = None

    async def secret(self) -> bytes:
        while self._secret is None:
            stored = await self._reach.call(self._read)
            if stored is not None:  # else it was flushed between the two
                self._secret = bytes.fromhex(stored)
        return self._secret

    async def _read(self) -> str | None:
        """Return the secret in hexadecimal, made if there was none."""
        key = PREFIX + "extra-key-secret"
        await self._client.set(key, secrets.token_hex(_SECRET_BYTES), nx=True)
        stored: Any = await self._client.get(key)
        return None if stored is None else str(stored)


class ExtraKeys:
    """Makes the extra keys of requests: a tenant's own, and those of public prefixes."""

    def __init__(self, source: SecretSource) -> None:
        self._source = source

    async def of_tenant(self, tenant: Tenant, adapter: Adapter | None, scope: str) -> bytes:
        """Return the 16 bytes that tag what is the tenant's own. Raises UnavailableError without the secret."""
        name = adapter.name if adapter else ""
        key = ExtraKey(
            tenant=tenant.tenant_id,
            adapter=name,
            adapter_revision=adapter.revision if adapter else "",
            cache_version=tenant.effective_cache_version(name),
            scope=scope,
        )
        return key.digest(await self._source.secret())

    async def of_public_prefix(self, prefix_id: str, version: int, adapter: Adapter | None) -> bytes:
        """Return the 16 bytes that tag a public prefix. No tenant's: those have names of at least one character.

        `version` differs for each time that something is registered under the id.
        """
        key = ExtraKey(
            tenant="",
            adapter=adapter.name if adapter else "",
            adapter_revision=adapter.revision if adapter else "",
            cache_version=version,
            scope=prefix_id,
        )
        return key.digest(await self._source.secret())
