"""How a gateway learns of changes that another one makes, on a real Redis."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.config import RedisConfig
from gateway.errors import UnavailableError
from gateway.identity.changes import CHANGED, CHANGES, MAX_CHANGED, ChangeLog, ChangeWatch
from gateway.identity.credentials import Credential
from gateway.identity.reach import StoreReach
from gateway.identity.redis_keys import RedisKeyStore
from gateway.identity.redis_store import connect
from gateway.identity.redis_tenants import RedisTenantStore
from gateway.identity.stores import ApiKey, KeyRecord, TenantChange, TenantState
from gateway.observer import NullObserver
from tests.fakes.gateway_stack import until
from tests.integration.quota_support import KillableRedis


class World:
    """One gateway's side."""

    def __init__(self, client: Redis) -> None:
        self.client = client
        self.reach = StoreReach(client, 5.0, NullObserver(), probe_s=0.01)
        self.tenants = RedisTenantStore(client, self.reach)
        self.keys = RedisKeyStore(client, self.reach)
        self.log = ChangeLog(client, self.reach)

    async def key(self, tenant_id: str) -> str:
        credential = Credential.generate()
        await self.keys.add(KeyRecord(ApiKey(credential.key_id, tenant_id, "", 1.0), credential.secret_hash()))
        return credential.key_id


@pytest.fixture
async def world(redis_url: str) -> AsyncIterator[World]:
    client = connect(RedisConfig(url=redis_url))
    world = World(client)
    for tenant_id in ("acme", "globex"):
        await world.tenants.create(tenant_id, "", 1.0)
    yield world
    await client.aclose()


# ------------------------------------------------------------------------------------------------------------- the log


async def test_every_change_of_tenants_and_keys_is_in_the_log(world: World) -> None:
    key_id = await world.key("acme")
    number = (await world.log.since(None)).number

    async def changed() -> frozenset[str] | None:
        nonlocal number
        told = await world.log.since(number)
        assert told.number > number
        number = told.number
        return told.subjects

    await world.tenants.update("acme", TenantChange("New"))
    assert await changed() == frozenset({"tenant acme"})
    await world.tenants.set_state("globex", TenantState.SUSPENDED)
    assert await changed() == frozenset({"tenant globex"})
    for adapter in ("", "lora"):
        await world.tenants.bump_cache_version("acme", adapter)
        assert await changed() == frozenset({"tenant acme"})
    new = Credential.generate()
    successor = KeyRecord(ApiKey(new.key_id, "acme", "", 1.0, replaces=key_id), new.secret_hash())
    await world.keys.rotate(successor, 5.0)
    assert await changed() == frozenset({f"key {key_id}"})
    await world.keys.revoke(key_id, 5.0)
    assert await changed() == frozenset({f"key {key_id}"})
    await world.tenants.delete("acme")
    assert await changed() == frozenset({"tenant acme", f"key {key_id}", f"key {new.key_id}"})
    assert (await world.log.since(number)).subjects == frozenset()


async def test_what_changes_nothing_is_no_change(world: World) -> None:
    key_id = await world.key("acme")
    await world.keys.revoke(key_id, 5.0)
    number = (await world.log.since(None)).number
    await world.keys.revoke(key_id, 6.0)
    await world.tenants.update("nobody", TenantChange("New"))
    await world.tenants.delete("nobody")
    assert await world.tenants.bump_cache_version("nobody", "") is None
    assert (await world.log.since(number)).number == number


async def test_the_log_is_bounded_and_says_when_it_does_not_know(world: World) -> None:
    before = (await world.log.since(None)).number
    async with world.client.pipeline(transaction=False) as pipeline:
        for i in range(MAX_CHANGED):
            pipeline.zadd(CHANGED, {f"key {i}": before + 1 + i})
        pipeline.set(CHANGES, before + MAX_CHANGED)
        await pipeline.execute()
    await world.tenants.update("acme", TenantChange("New"))
    assert await world.client.zcard(CHANGED) == MAX_CHANGED
    assert (await world.log.since(before)).subjects is None
    assert (await world.log.since(before + MAX_CHANGED)).subjects == frozenset({"tenant acme"})


async def test_after_redis_has_lost_what_it_had_anything_may_have_changed(world: World) -> None:
    number = (await world.log.since(None)).number
    await world.client.flushall()
    assert (await world.log.since(number)).subjects is None


# ----------------------------------------------------------------------------------------------------------- the watch


@dataclass
class Follower:
    """Counts calls; fails, or takes its time, as a test wants it."""

    calls: int = 0
    failures: list[Exception] = field(default_factory=list)
    gate: asyncio.Event | None = None

    async def follow(self) -> None:
        self.calls += 1
        if self.failures:
            raise self.failures.pop()
        if self.gate is not None:
            await self.gate.wait()

    def has_calls(self, number: int) -> Callable[[], bool]:
        return lambda: self.calls >= number


@contextlib.asynccontextmanager
async def watching(world: World, *followers: Follower, again_s: float | None = None) -> AsyncIterator[None]:
    watch = ChangeWatch(world.client, world.reach, poll_s=0.01)
    for follower in followers:
        watch.when_changed(follower.follow, again_s)
    tasks = [asyncio.create_task(run()) for run in (watch.run, world.reach.run)]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def settled(world: World, follower: Follower) -> int:
    """Return the calls so far when a change of another kind has been followed."""
    before = follower.calls
    await world.client.incr(CHANGES)
    await until(follower.has_calls(before + 1))
    return follower.calls


async def test_everybody_is_called_at_the_start_and_after_each_change(world: World) -> None:
    one, other = Follower(), Follower()
    async with watching(world, one, other):
        for calls in range(1, 5):
            await until(lambda calls=calls: one.calls == other.calls == calls)  # type: ignore[misc]
            await world.client.incr(CHANGES)


async def test_without_a_change_nobody_is_called(world: World) -> None:
    slow, quick = Follower(), Follower()
    async with watching(world, slow, quick):
        await until(lambda: slow.calls == quick.calls == 1)
        for calls in range(2, 6):
            assert await settled(world, quick) == calls
        assert slow.calls == quick.calls


async def test_a_change_during_a_call_is_followed_by_another_one(world: World) -> None:
    follower = Follower(gate=asyncio.Event())
    async with watching(world, follower):
        await until(follower.has_calls(1))
        await world.client.incr(CHANGES)
        assert follower.gate is not None
        follower.gate.set()
        await until(follower.has_calls(2))


async def test_one_that_is_slow_or_fails_holds_up_nobody(world: World) -> None:
    slow, failing, other = Follower(gate=asyncio.Event()), Follower(failures=[ValueError("mine")]), Follower()
    async with watching(world, slow, failing, other):
        for calls in range(1, 4):
            await until(lambda calls=calls: other.calls == failing.calls == calls)  # type: ignore[misc]
            await world.client.incr(CHANGES)
        assert slow.calls == 1


async def test_one_that_could_not_follow_is_called_again(world: World) -> None:
    follower = Follower(failures=[UnavailableError("away"), UnavailableError("away")])
    async with watching(world, follower):
        await until(follower.has_calls(3))
        assert await settled(world, follower) == 4


async def test_one_that_wants_it_is_called_once_more_a_while_later(world: World) -> None:
    follower = Follower()
    async with watching(world, follower, again_s=0.1):
        began_at = time.monotonic()
        await until(follower.has_calls(2))
        assert time.monotonic() - began_at >= 0.1
        assert await settled(world, follower) == 3


async def test_everybody_is_called_when_redis_has_been_away(tmp_path: Path) -> None:
    with KillableRedis(tmp_path) as server:
        client = connect(RedisConfig(url=server.url))
        world, follower = World(client), Follower()
        async with watching(world, follower):
            await until(follower.has_calls(1))
            server.kill()
            await until(lambda: world.reach.away)
            calls = follower.calls
            server.start()
            await until(follower.has_calls(calls + 1))
        await client.aclose()
