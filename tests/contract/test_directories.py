"""What every directory of credentials promises; each implementation passes."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from gateway.config import RedisConfig
from gateway.identity.credentials import Credential
from gateway.identity.directory import Directory, KnownKey, RedisDirectory, StoreDirectory
from gateway.identity.memory import MemoryKeyStore, MemoryTenantStore
from gateway.identity.reach import StoreReach
from gateway.identity.redis_keys import RedisKeyStore
from gateway.identity.redis_store import connect
from gateway.identity.redis_tenants import RedisTenantStore
from gateway.identity.remembering import RememberingDirectory
from gateway.identity.stores import ApiKey, KeyRecord, KeyStore, TenantChange, TenantState, TenantStore
from gateway.observer import NullObserver
from gateway.policy import TenantPolicy

NOW = 1_700_000_000.0


@dataclass
class World:
    directory: Directory
    tenants: TenantStore
    keys: KeyStore

    async def key(self, tenant_id: str = "acme") -> KeyRecord:
        credential = Credential.generate()
        record = KeyRecord(ApiKey(credential.key_id, tenant_id, "", NOW), credential.secret_hash())
        await self.keys.add(record)
        return record


@pytest.fixture(params=["stores", "redis", "remembering stores", "remembering redis"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    client = None
    tenants: TenantStore
    keys: KeyStore
    directory: Directory
    if "redis" in request.param:
        client = connect(RedisConfig(url=request.getfixturevalue("redis_url")))
        reach = StoreReach(client, 5.0, NullObserver())
        tenants, keys = RedisTenantStore(client, reach), RedisKeyStore(client, reach)
        directory = RedisDirectory(client, reach)
    else:
        in_memory = MemoryTenantStore()
        tenants, keys = in_memory, MemoryKeyStore(in_memory)
        directory = StoreDirectory(tenants, keys)
    if "remembering" in request.param:
        directory = RememberingDirectory(directory, 60.0)
    await tenants.create("acme", "Acme", NOW, TenantPolicy(weight=2.0, models=("m",)))
    yield World(directory, tenants, keys)
    if client is not None:
        await client.aclose()


async def test_a_key_is_known_with_its_tenant(world: World) -> None:
    record = await world.key()
    tenant = await world.tenants.get("acme")
    assert tenant is not None
    assert await world.directory.find_key(record.api_key.key_id) == KnownKey(record, tenant)
    assert await world.directory.find_tenant("acme") == tenant


async def test_what_does_not_exist_is_not_known(world: World) -> None:
    assert await world.directory.find_key("0" * 16) is None
    assert await world.directory.find_tenant("nobody") is None


async def test_every_change_shows_in_the_next_look(world: World) -> None:
    record = await world.key()
    for change in (
        lambda: world.tenants.bump_cache_version("acme", ""),
        lambda: world.tenants.bump_cache_version("acme", "lora"),
        lambda: world.tenants.bump_cache_version("acme", "lora"),
        lambda: world.tenants.update("acme", TenantChange("New", {"weight": None, "priority": 3})),
        lambda: world.tenants.set_state("acme", TenantState.SUSPENDED),
        lambda: world.tenants.set_state("acme", TenantState.ACTIVE),
    ):
        await change()
        tenant = await world.tenants.get("acme")
        assert tenant is not None
        assert await world.directory.find_key(record.api_key.key_id) == KnownKey(record, tenant)
        assert await world.directory.find_tenant("acme") == tenant
    last = await world.directory.find_tenant("acme")
    assert last is not None
    assert last.effective_cache_version("lora") == last.cache_version + 2


async def test_a_revoked_key_shows_as_revoked_and_a_rotated_one_with_its_end(world: World) -> None:
    old, new = await world.key(), Credential.generate()
    successor = KeyRecord(
        ApiKey(new.key_id, "acme", "", NOW, replaces=old.api_key.key_id),
        new.secret_hash(),
    )
    await world.keys.rotate(successor, NOW + 5)
    found = await world.directory.find_key(old.api_key.key_id)
    assert found is not None
    assert found.key.api_key == replace(old.api_key, expires_at=NOW + 5)
    await world.keys.revoke(old.api_key.key_id, NOW + 1)
    found = await world.directory.find_key(old.api_key.key_id)
    assert found is not None
    assert found.key.api_key.revoked_at == NOW + 1


async def test_a_deleted_tenant_is_not_known_by_any_of_its_keys(world: World) -> None:
    records = [await world.key() for _ in range(3)]
    for record in records:
        assert await world.directory.find_key(record.api_key.key_id) is not None
    await world.tenants.delete("acme")
    assert [await world.directory.find_key(record.api_key.key_id) for record in records] == [None] * 3
    assert await world.directory.find_tenant("acme") is None
