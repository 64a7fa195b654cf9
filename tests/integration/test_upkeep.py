"""What changes elsewhere mean for a gateway's streams and its memory, on a real Redis."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest
from redis.asyncio import Redis

from gateway.config import RedisConfig
from gateway.errors import GatewayError, PermissionDeniedError, UnauthenticatedError, UnavailableError
from gateway.identity.callers import Caller
from gateway.identity.changes import ChangeLog
from gateway.identity.credentials import Credential
from gateway.identity.directory import RedisDirectory
from gateway.identity.reach import StoreReach
from gateway.identity.redis_keys import RedisKeyStore
from gateway.identity.redis_store import connect
from gateway.identity.redis_tenants import RedisTenantStore
from gateway.identity.remembering import RememberingDirectory
from gateway.identity.sessions import Sessions
from gateway.identity.stores import ApiKey, KeyRecord, Tenant, TenantChange, TenantState
from gateway.identity.upkeep import Upkeep
from gateway.observer import NullObserver
from gateway.policy import Terms


class World:
    """One gateway's side: stores, what it remembers, what it has running."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self.reach = StoreReach(client, 5.0, NullObserver())
        self.tenants = RedisTenantStore(client, self.reach)
        self.keys = RedisKeyStore(client, self.reach)
        self.directory = RememberingDirectory(RedisDirectory(client, self.reach), 60.0)
        self.sessions = Sessions()
        self.now = 1_000.0
        self.upkeep = Upkeep(ChangeLog(client, self.reach), self.directory, self.sessions, lambda: self.now)

    async def key(self, tenant_id: str, expires_at: float | None = None) -> str:
        credential = Credential.generate()
        key = ApiKey(credential.key_id, tenant_id, "", 1.0, expires_at=expires_at)
        await self.keys.add(KeyRecord(key, credential.secret_hash()))
        return credential.key_id


@pytest.fixture
async def world(redis_url: str) -> AsyncIterator[World]:
    client = connect(RedisConfig(url=redis_url))
    world = World(client)
    for tenant_id in ("acme", "globex"):
        await world.tenants.create(tenant_id, "", 1.0)
    yield world
    await client.aclose()


@dataclass
class Interrupts:
    errors: list[GatewayError] = field(default_factory=list)

    @contextlib.contextmanager
    def session_of(self, world: World, tenant_id: str, credential: str) -> Iterator[None]:
        caller = Caller(Tenant(tenant_id, "", 1.0, 1), Terms(), credential, 0.0)
        with world.sessions.opened(caller, self.errors.append):
            yield


async def test_only_sessions_of_what_is_no_longer_good_are_ended(world: World) -> None:
    await world.upkeep.follow()
    good, bad = await world.key("acme"), await world.key("acme")
    ended, others = Interrupts(), Interrupts()
    with (
        ended.session_of(world, "acme", f"key {bad}"),
        ended.session_of(world, "acme", f"key {bad}"),
        others.session_of(world, "acme", f"key {good}"),
        others.session_of(world, "acme", "token alice"),
        others.session_of(world, "globex", "certificate globex"),
    ):
        await world.tenants.update("acme", TenantChange("New"))
        await world.upkeep.follow()
        assert not ended.errors
        await world.keys.revoke(bad, 5.0)
        await world.upkeep.follow()
        assert [type(error) for error in ended.errors] == [UnauthenticatedError] * 2
        assert not others.errors


@pytest.mark.parametrize("credential", ["key", "token alice", "certificate acme"])
async def test_a_tenant_that_is_suspended_or_gone_ends_its_sessions_whatever_their_credential(
    world: World, credential: str
) -> None:
    await world.upkeep.follow()
    name = f"key {await world.key('acme')}" if credential == "key" else credential
    ended = Interrupts()
    with ended.session_of(world, "acme", name):
        await world.tenants.set_state("acme", TenantState.SUSPENDED)
        await world.upkeep.follow()
        await world.tenants.delete("acme")
        await world.upkeep.follow()
    assert [type(error) for error in ended.errors] == [PermissionDeniedError, UnauthenticatedError]
    assert ended.errors[0].reason == "TENANT_SUSPENDED"


@pytest.mark.parametrize("credential", ["token alice", "certificate acme"])
async def test_a_tenant_made_anew_takes_over_no_sessions_of_the_one_that_was_deleted(
    world: World, credential: str
) -> None:
    await world.upkeep.follow()
    ended = Interrupts()
    with ended.session_of(world, "acme", credential):
        await world.tenants.delete("acme")
        await world.tenants.create("acme", "", 2.0)
        await world.upkeep.follow()
    assert [type(error) for error in ended.errors] == [UnauthenticatedError]


async def test_a_session_that_opens_just_after_a_change_was_followed_is_seen_the_second_time(world: World) -> None:
    await world.upkeep.follow()
    late = Interrupts()
    await world.tenants.set_state("acme", TenantState.SUSPENDED)
    await world.upkeep.follow()
    with late.session_of(world, "acme", "token alice"):
        await world.upkeep.follow()
    assert [type(error) for error in late.errors] == [PermissionDeniedError]


async def test_a_key_that_has_expired_ends_its_sessions_when_something_about_it_changes(world: World) -> None:
    await world.upkeep.follow()
    key_id = await world.key("acme", expires_at=world.now + 10)
    ended = Interrupts()
    with ended.session_of(world, "acme", f"key {key_id}"):
        for later, ends in ((9.0, False), (10.0, True)):
            world.now = 1_000.0 + later
            await world.tenants.update("acme", TenantChange("New"))
            await world.upkeep.follow()
            assert bool(ended.errors) is ends


async def lost() -> None:
    raise OSError("gone")


async def test_what_is_remembered_is_read_anew_when_it_has_changed(world: World) -> None:
    await world.upkeep.follow()
    kept, revoked, unknown = [await world.key("acme") for _ in range(3)]
    for key_id in (kept, revoked):
        await world.directory.find_key(key_id)
    await world.keys.revoke(revoked, 5.0)
    await world.keys.revoke(unknown, 5.0)
    await world.tenants.set_state("acme", TenantState.SUSPENDED)
    await world.upkeep.follow()
    with pytest.raises(UnavailableError):
        await world.reach.call(lost)
    found = await world.directory.find_key(kept)
    assert found is not None
    assert found.tenant.state is TenantState.SUSPENDED
    for key_id in (revoked, unknown):
        with pytest.raises(UnavailableError):
            await world.directory.find_key(key_id)


async def test_where_nobody_knows_what_has_changed_everything_is_looked_at_and_forgotten(world: World) -> None:
    await world.upkeep.follow()
    key_id = await world.key("acme")
    await world.directory.find_key(key_id)
    ended = Interrupts()
    with ended.session_of(world, "acme", f"key {key_id}"):
        await world.client.flushall()
        await world.upkeep.follow()
    assert [type(error) for error in ended.errors] == [UnauthenticatedError]
    assert not world.directory.remembers_key(key_id)
