"""What every store of tenants, keys and the deployment's secret promises; each implementation passes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, fields, replace

import pytest

from gateway.config import RedisConfig
from gateway.errors import AlreadyExistsError, FailedPreconditionError, NotFoundError
from gateway.identity.credentials import Credential
from gateway.identity.extra_keys import ConfiguredSecret, RedisSecret, SecretSource
from gateway.identity.memory import MemoryKeyStore, MemoryTenantStore
from gateway.identity.reach import StoreReach
from gateway.identity.redis_keys import RedisKeyStore
from gateway.identity.redis_store import connect
from gateway.identity.redis_tenants import RedisTenantStore
from gateway.identity.stores import (
    ApiKey,
    KeyRecord,
    KeyStore,
    Tenant,
    TenantChange,
    TenantState,
    TenantStore,
)
from gateway.observer import NullObserver
from gateway.policy import TenantPolicy

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
    reach = StoreReach(client, 5.0, NullObserver())
    yield Stores(
        RedisTenantStore(client, reach),
        RedisKeyStore(client, reach),
        RedisSecret(client, reach),
        RedisSecret(client, reach),
    )
    await client.aclose()


async def keys_of(stores: Stores, tenant_id: str) -> list[ApiKey]:
    return list(await stores.keys.list_after(tenant_id, "", 1000))


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


EVERYTHING = TenantPolicy(
    weight=2.5,
    priority=-7,
    cache_floor_tokens=0,
    max_deadline_s=0.25,
    requests_per_minute=10**15,
    tokens_per_minute=1,
    max_concurrent_requests=3,
    max_queued_requests=0,
    models=("one", "zwei-ü"),
    adapters=("lora",),
)


def names_of_policies() -> list[str]:
    return [each.name for each in fields(TenantPolicy)]


async def made(stores: Stores, tenant_id: str = "acme", policy: TenantPolicy | None = None) -> Tenant:
    return await stores.tenants.create(tenant_id, "", NOW, policy)


@pytest.mark.parametrize("policy", [TenantPolicy(), EVERYTHING], ids=["nothing", "everything"])
async def test_a_policy_is_kept_as_it_was_set(stores: Stores, policy: TenantPolicy) -> None:
    tenant = await made(stores, policy=policy)
    assert (tenant.policy, tenant.state) == (policy, TenantState.ACTIVE)
    assert await stores.tenants.get("acme") == tenant
    assert await stores.tenants.list_after("", 10) == [tenant]


@pytest.mark.parametrize("name", names_of_policies())
async def test_each_field_of_a_policy_is_set_and_unset_alone(stores: Stores, name: str) -> None:
    await made(stores)
    unset, value = getattr(TenantPolicy(), name), getattr(EVERYTHING, name)
    updated = await stores.tenants.update("acme", TenantChange(policy={name: value}))
    assert updated is not None
    assert updated.policy == replace(TenantPolicy(), **{name: value})
    assert await stores.tenants.get("acme") == updated
    await stores.tenants.update(
        "acme", TenantChange(policy={each: getattr(EVERYTHING, each) for each in names_of_policies()})
    )
    updated = await stores.tenants.update("acme", TenantChange("Acme", {name: unset}))
    assert updated is not None
    assert (updated.display_name, updated.policy) == ("Acme", replace(EVERYTHING, **{name: unset}))
    assert await stores.tenants.get("acme") == updated


async def test_updates_of_other_fields_meet(stores: Stores) -> None:
    await made(stores)
    await asyncio.gather(
        *(
            stores.tenants.update("acme", TenantChange(policy={each: getattr(EVERYTHING, each)}))
            for each in names_of_policies()
        ),
        stores.tenants.update("acme", TenantChange("Acme")),
    )
    found = await stores.tenants.get("acme")
    assert found is not None
    assert (found.display_name, found.policy) == ("Acme", EVERYTHING)


async def test_a_state_is_kept_and_changes_nothing_else(stores: Stores) -> None:
    tenant = await made(stores, policy=EVERYTHING)
    for state in (TenantState.SUSPENDED, TenantState.SUSPENDED, TenantState.ACTIVE):
        assert await stores.tenants.set_state("acme", state) == replace(tenant, state=state)
        assert await stores.tenants.get("acme") == replace(tenant, state=state)


async def test_what_does_not_exist_cannot_be_changed(stores: Stores) -> None:
    assert await stores.tenants.update("nobody", TenantChange("Nobody", {"weight": 2.0})) is None
    assert await stores.tenants.set_state("nobody", TenantState.SUSPENDED) is None
    assert await stores.tenants.delete("nobody") is None
    assert await stores.tenants.get("nobody") is None


async def test_a_tenant_made_under_the_id_of_a_deleted_one_is_not_deleted_in_its_place(stores: Stores) -> None:
    old = await made(stores)
    await stores.tenants.delete("acme", old.created_at)
    new = await stores.tenants.create("acme", "", NOW + 1)
    key = record("acme")
    await stores.keys.add(key)
    assert await stores.tenants.delete("acme", old.created_at) is None
    assert (await stores.tenants.get("acme"), await keys_of(stores, "acme")) == (new, [key.api_key])
    assert await stores.tenants.delete("acme", new.created_at) == 1


async def test_a_deleted_tenant_is_gone_with_its_keys_and_no_other(stores: Stores) -> None:
    await made(stores)
    other = await made(stores, "globex")
    ours, theirs = [record("acme") for _ in range(3)], record("globex")
    for each in (*ours, theirs):
        await stores.keys.add(each)
    assert await stores.tenants.delete("acme") == 3
    assert await stores.tenants.get("acme") is None
    assert await stores.tenants.list_after("", 10) == [other]
    assert [await stores.keys.find(each.api_key.key_id) for each in ours] == [None] * 3
    assert await keys_of(stores, "acme") == []
    assert await stores.keys.find(theirs.api_key.key_id) == theirs
    assert await stores.tenants.delete("acme") is None


async def test_keys_made_while_their_tenant_is_deleted_are_gone_or_refused(stores: Stores) -> None:
    await made(stores)
    records = [record("acme") for _ in range(30)]
    *_, deleted = await asyncio.gather(
        *(stores.keys.add(each) for each in records), stores.tenants.delete("acme"), return_exceptions=True
    )
    assert isinstance(deleted, int)
    assert [await stores.keys.find(each.api_key.key_id) for each in records] == [None] * 30
    await made(stores)
    assert await keys_of(stores, "acme") == []


async def test_a_tenant_made_anew_has_nothing_of_the_old_one_and_no_version_that_was_in_use(stores: Stores) -> None:
    used: set[int | None] = set()
    for _ in range(3):  # all within one millisecond
        tenant = await made(stores, policy=EVERYTHING)
        await stores.tenants.set_state("acme", TenantState.SUSPENDED)
        versions = {await stores.tenants.cache_version("acme", adapter) for adapter in ("", "lora")}
        for adapter in ("lora", "", "lora", "lora", "", "lora"):
            versions.add(await stores.tenants.bump_cache_version("acme", adapter))
        assert not used & versions
        used |= versions
        await stores.tenants.delete("acme")
    tenant = await made(stores)
    assert (tenant.policy, tenant.state, tenant.adapter_versions) == (TenantPolicy(), TenantState.ACTIVE, {})
    assert tenant.cache_version > max(version or 0 for version in used)


async def test_a_tenant_made_again_with_the_same_mark_is_the_same(stores: Stores) -> None:
    tenant = await stores.tenants.create("acme", "Acme", NOW, EVERYTHING, "mark")
    assert await stores.tenants.create("acme", "Acme", NOW, EVERYTHING, "mark") == tenant
    for mark in ("", "other"):
        with pytest.raises(AlreadyExistsError):
            await stores.tenants.create("acme", "Acme", NOW, EVERYTHING, mark)
    await made(stores, "globex")
    with pytest.raises(AlreadyExistsError):
        await made(stores, "globex")


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
    assert await keys_of(stores, "acme") == [each.api_key for each in ours]
    assert await keys_of(stores, "nobody") == []


async def test_keys_of_one_moment_are_listed_as_they_were_added(stores: Stores) -> None:
    await made(stores)
    same = [record("acme") for _ in range(12)]
    for each in same:
        await stores.keys.add(each)
    earlier, later = record("acme", now=NOW - 0.001), record("acme", now=NOW + 0.001)
    await stores.keys.add(later)
    await stores.keys.add(earlier)
    assert await keys_of(stores, "acme") == [each.api_key for each in (earlier, *same, later)]


async def test_keys_are_listed_page_by_page(stores: Stores) -> None:
    await made(stores)
    await made(stores, "globex")
    ours = [record("acme", now=NOW + i // 3) for i in range(7)]
    theirs = record("globex")
    for each in (*ours, theirs):
        await stores.keys.add(each)
    listed: list[ApiKey] = []
    while page := await stores.keys.list_after("acme", listed[-1].key_id if listed else "", 3):
        assert len(page) <= 3
        listed += page
    assert listed == [each.api_key for each in ours]
    assert list(await stores.keys.list_after("acme", theirs.api_key.key_id, 3)) == []


async def test_a_key_is_kept_with_all_that_narrows_it(stores: Stores) -> None:
    await made(stores)
    plain = record("acme")
    full = KeyRecord(
        replace(plain.api_key, expires_at=NOW + 0.125, models=("m", "zwei ü"), adapters=("a",), replaces="0" * 16),
        plain.secret_hash,
    )
    await stores.keys.add(full)
    assert await stores.keys.find(full.api_key.key_id) == full
    assert await keys_of(stores, "acme") == [full.api_key]


async def test_adding_the_same_key_again_changes_nothing(stores: Stores) -> None:
    await made(stores)
    one = record("acme")
    await stores.keys.add(one)
    revoked = await stores.keys.revoke(one.api_key.key_id, NOW + 1)
    await stores.keys.add(one)
    assert await keys_of(stores, "acme") == [revoked]


async def rotated(stores: Stores, old: KeyRecord, expires_at: float) -> tuple[KeyRecord, ApiKey]:
    plain = record("acme", now=NOW + 1)
    new = replace(plain, api_key=replace(plain.api_key, replaces=old.api_key.key_id))
    return new, await stores.keys.rotate(new, expires_at)


@pytest.mark.parametrize(("before", "after"), [(None, NOW + 50), (NOW + 90, NOW + 50), (NOW + 20, NOW + 20)])
async def test_a_rotated_key_lives_until_then_and_never_longer_than_before(
    stores: Stores, before: float | None, after: float
) -> None:
    await made(stores)
    plain = record("acme")
    old = replace(plain, api_key=replace(plain.api_key, expires_at=before))
    await stores.keys.add(old)
    new, replaced = await rotated(stores, old, NOW + 50)
    assert replaced == replace(old.api_key, expires_at=after)
    assert await stores.keys.find(old.api_key.key_id) == replace(old, api_key=replaced)
    assert await stores.keys.find(new.api_key.key_id) == new
    assert await keys_of(stores, "acme") == [replaced, new.api_key]
    assert await stores.keys.rotate(new, NOW + 5) == replaced  # the second time is without effect
    assert len(await keys_of(stores, "acme")) == 2


async def test_a_key_that_is_revoked_or_unknown_cannot_be_rotated(stores: Stores) -> None:
    await made(stores)
    old = record("acme")
    with pytest.raises(NotFoundError):
        await rotated(stores, old, NOW)
    await stores.keys.add(old)
    revoked = await stores.keys.revoke(old.api_key.key_id, NOW + 1)
    with pytest.raises(FailedPreconditionError) as refusal:
        await rotated(stores, old, NOW)
    assert refusal.value.reason == "KEY_REVOKED"
    assert await keys_of(stores, "acme") == [revoked]


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
    assert revoked in await keys_of(stores, "acme")


async def test_a_key_that_does_not_exist_cannot_be_revoked(stores: Stores) -> None:
    assert await stores.keys.revoke("0" * 16, NOW) is None
    assert await stores.keys.find("0" * 16) is None


async def test_all_gateways_have_the_same_secret_and_it_can_key_a_digest(stores: Stores) -> None:
    secrets = await asyncio.gather(*(source.secret() for source in (stores.secret, stores.same_secret) * 4))
    assert len(set(secrets)) == 1
    assert 16 <= len(secrets[0]) <= 64
