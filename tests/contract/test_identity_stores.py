"""What every store of tenants, keys and the deployment's secret promises; each implementation passes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from gateway.config import RedisConfig
from gateway.errors import AlreadyExistsError, NotFoundError
from gateway.identity.credentials import Credential
from gateway.identity.extra_keys import ConfiguredSecret, RedisSecret, SecretSource
from gateway.identity.memory import MemoryKeyStore, MemoryTenantStore
from gateway.identity.redis_store import RedisKeyStore, RedisTenantStore, connect
from gateway.identity.stores import ApiKey, KeyRecord, KeyStore, TenantStore

NOW = 1_700_000_000.25


@dataclass
class Stores:
    tenants: TenantStore
    keys: KeyStore
    secret: SecretSource
    same_secret: SecretSource  # as another gateway of the deployment sees it


@pytest.fixture(params=["memory", "redis"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    if request.param == "memory":
        tenants = MemoryTenantStore()
        secret = ConfiguredSecret("from the configuration")
        yield Stores(tenants, MemoryKeyStore(tenants), secret, ConfiguredSecret("from the configuration"))
        return
    client = connect(RedisConfig(url=request.getfixturevalue("redis_url")))
    yield Stores(RedisTenantStore(client), RedisKeyStore(client), RedisSecret(client), RedisSecret(client))
    await client.aclose()


def record(tenant_id: str, *, now: float = NOW) -> KeyRecord:
    credential = Credential.generate()
    return KeyRecord(ApiKey(credential.key_id, tenant_id, "laptop", now), credential.secret_hash())


async def test_a_tenant_is_found_as_it_was_made(stores: Stores) -> None:
    made = await stores.tenants.create("acme", "Acme, Inc. Ü", NOW)
    assert (made.tenant_id, made.display_name, made.created_at) == ("acme", "Acme, Inc. Ü", NOW)
    assert await stores.tenants.get("acme") == made
    assert await stores.tenants.get("other") is None


async def test_a_tenant_is_made_once_however_many_try(stores: Stores) -> None:
    tries = await asyncio.gather(
        *(stores.tenants.create("acme", str(i), NOW) for i in range(8)), return_exceptions=True
    )
    made = [outcome for outcome in tries if not isinstance(outcome, BaseException)]
    refused = [outcome for outcome in tries if isinstance(outcome, AlreadyExistsError)]
    assert (len(made), len(refused)) == (1, 7)
    assert await stores.tenants.get("acme") == made[0]


async def test_tenants_are_listed_in_order_page_by_page(stores: Stores) -> None:
    ids = ["a", "a-1", "a_", "b", "c0", "zz"]
    for tenant_id in reversed(ids):
        await stores.tenants.create(tenant_id, "", NOW)
    listed: list[str] = []
    while page := await stores.tenants.list_after(listed[-1] if listed else "", 4):
        assert len(page) <= 4
        listed += [tenant.tenant_id for tenant in page]
    assert listed == sorted(ids)


async def test_a_tenant_made_later_starts_with_a_later_version(stores: Stores) -> None:
    earlier = await stores.tenants.create("earlier", "", NOW)
    later = await stores.tenants.create("later", "", NOW + 1)
    assert earlier.cache_version < later.cache_version


async def test_every_bump_raises_the_effective_version(stores: Stores) -> None:
    tenant = await stores.tenants.create("acme", "", NOW)
    seen = [tenant.cache_version]
    for adapter in ("", "lora", "", "lora", "lora", ""):
        bumped = await stores.tenants.bump_cache_version("acme", adapter)
        assert bumped == await stores.tenants.cache_version("acme", adapter)
        version = await stores.tenants.cache_version("acme", "lora")
        assert version is not None
        seen.append(version)
    assert seen == sorted(set(seen))
    found = await stores.tenants.get("acme")
    assert found is not None
    assert found.cache_version == tenant.cache_version + 3


async def test_an_adapters_bump_concerns_that_adapter_alone(stores: Stores) -> None:
    await stores.tenants.create("acme", "", NOW)
    before = [await stores.tenants.cache_version("acme", adapter) for adapter in ("", "other", "lora")]
    await stores.tenants.bump_cache_version("acme", "lora")
    after = [await stores.tenants.cache_version("acme", adapter) for adapter in ("", "other", "lora")]
    assert after[:2] == before[:2]
    assert after[2] != before[2]


async def test_no_bump_is_lost(stores: Stores) -> None:
    tenant = await stores.tenants.create("acme", "", NOW)
    versions = await asyncio.gather(*(stores.tenants.bump_cache_version("acme", "") for _ in range(20)))
    assert sorted(version or 0 for version in versions) == [tenant.cache_version + 1 + i for i in range(20)]


async def test_what_does_not_exist_has_no_version_and_cannot_be_bumped(stores: Stores) -> None:
    for adapter in ("", "lora"):
        assert await stores.tenants.bump_cache_version("nobody", adapter) is None
        assert await stores.tenants.cache_version("nobody", adapter) is None
    assert await stores.tenants.list_after("", 10) == []


async def test_a_key_is_found_by_its_id_as_it_was_added(stores: Stores) -> None:
    await stores.tenants.create("acme", "", NOW)
    added = record("acme")
    await stores.keys.add(added)
    assert await stores.keys.find(added.api_key.key_id) == added
    assert await stores.keys.find("0" * 16) is None


async def test_a_key_needs_its_tenant(stores: Stores) -> None:
    orphan = record("nobody")
    with pytest.raises(NotFoundError):
        await stores.keys.add(orphan)
    assert await stores.keys.find(orphan.api_key.key_id) is None


async def test_a_key_is_never_overwritten(stores: Stores) -> None:
    await stores.tenants.create("acme", "", NOW)
    await stores.tenants.create("globex", "", NOW)
    first = record("acme")
    await stores.keys.add(first)
    taken = KeyRecord(ApiKey(first.api_key.key_id, "globex", "", NOW), b"x" * 32)
    with pytest.raises(AlreadyExistsError):
        await stores.keys.add(taken)
    assert await stores.keys.find(first.api_key.key_id) == first


async def test_keys_are_listed_for_their_tenant_only_oldest_first(stores: Stores) -> None:
    await stores.tenants.create("acme", "", NOW)
    await stores.tenants.create("globex", "", NOW)
    ours = [record("acme", now=NOW + i) for i in range(3)]
    for each in (ours[2], record("globex"), ours[0], ours[1]):
        await stores.keys.add(each)
    assert await stores.keys.list_of("acme") == [each.api_key for each in ours]
    assert await stores.keys.list_of("nobody") == []


async def test_a_revocation_shows_at_once_and_stays_as_it_was(stores: Stores) -> None:
    await stores.tenants.create("acme", "", NOW)
    one, other = record("acme"), record("acme")
    await stores.keys.add(one)
    await stores.keys.add(other)
    revoked = await stores.keys.revoke(one.api_key.key_id, NOW + 5)
    assert revoked is not None
    assert revoked.revoked_at == NOW + 5
    assert await stores.keys.revoke(one.api_key.key_id, NOW + 9) == revoked
    found = await stores.keys.find(one.api_key.key_id)
    assert found == KeyRecord(revoked, one.secret_hash)
    assert await stores.keys.find(other.api_key.key_id) == other
    assert revoked in await stores.keys.list_of("acme")


async def test_a_key_that_does_not_exist_cannot_be_revoked(stores: Stores) -> None:
    assert await stores.keys.revoke("0" * 16, NOW) is None
    assert await stores.keys.find("0" * 16) is None


async def test_all_gateways_have_the_same_secret_and_it_can_key_a_digest(stores: Stores) -> None:
    secrets = await asyncio.gather(*(source.secret() for source in (stores.secret, stores.same_secret) * 4))
    assert len(set(secrets)) == 1
    assert 16 <= len(secrets[0]) <= 64
