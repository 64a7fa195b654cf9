"""Which namespaces a tenant has used, as Redis is told of it: bounded, soon, and not again and again."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from cli.embedded_redis import EmbeddedRedis
from gateway.config import RedisConfig
from gateway.control.namespaces import UsedNamespaces
from gateway.dispatch.generation import Generation, Segment
from gateway.errors import UnavailableError
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import connect
from gateway.observer import NullObserver
from hicache.keys import Namespace
from radixgate.v1 import inference_pb2
from tests.fakes.gateway_stack import until


def generation(tenant: str, number: int, adapter: str = "", revision: str = "") -> Generation:
    key = number.to_bytes(16, "little")
    return Generation("r", tenant, adapter, revision, (Segment(key, [1]),), inference_pb2.SamplingParams())


def namespace(number: int, revision: str = "") -> Namespace:
    return Namespace(number.to_bytes(16, "little"), revision)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    made = connect(RedisConfig(url=redis_url))
    yield made
    await made.aclose()


@asynccontextmanager
async def reached(client: Redis) -> AsyncIterator[StoreReach]:
    reach = StoreReach(client, 0.5, NullObserver(), probe_s=0.01)
    probing = asyncio.create_task(reach.run())
    yield reach
    probing.cancel()


def used(client: Redis, clock: Clock | None = None, max_of_tenant: int = 100) -> UsedNamespaces:
    reach = StoreReach(client, 2.0, NullObserver())
    return UsedNamespaces(client, reach, clock or Clock(), max_of_tenant)


async def test_what_was_used_is_found_by_tenant_and_adapter(client: Redis) -> None:
    namespaces = used(client)
    for made in (generation("acme", 1), generation("acme", 2, "poet", "r1"), generation("globex", 3)):
        namespaces.used(made)
    assert set((await namespaces.of_tenant("acme")).values()) == {namespace(1), namespace(2, "r1")}
    assert set((await namespaces.of_tenant("acme", "poet")).values()) == {namespace(2, "r1")}
    assert set((await namespaces.of_tenant("acme", "")).values()) == {namespace(1)}
    assert await namespaces.of_tenant("nobody") == {}


async def test_redis_is_told_again_only_after_some_minutes(client: Redis) -> None:
    clock = Clock()
    namespaces = used(client, clock)
    namespaces.used(generation("acme", 1))
    await namespaces.write()
    await client.flushall()
    clock.now = 200.0
    namespaces.used(generation("acme", 1))
    assert await namespaces.of_tenant("acme") == {}
    clock.now = 400.0
    namespaces.used(generation("acme", 1))
    assert len(await namespaces.of_tenant("acme")) == 1


async def test_the_ones_used_last_are_kept(client: Redis) -> None:
    namespaces = used(client, max_of_tenant=5)
    for number in range(9):
        namespaces.used(generation("acme", number))
        await namespaces.write()
    assert set((await namespaces.of_tenant("acme")).values()) == {namespace(number) for number in range(4, 9)}


async def test_what_was_purged_is_forgotten_unless_it_was_used_since(client: Redis) -> None:
    namespaces = used(client)
    namespaces.used(generation("acme", 1))
    found = await namespaces.of_tenant("acme")
    await namespaces.forget("acme", found, used_before=0.0)
    assert await namespaces.of_tenant("acme") == found
    await namespaces.forget("acme", found, used_before=2.0**40)
    assert await namespaces.of_tenant("acme") == {}
    namespaces.used(generation("acme", 1))
    assert await namespaces.of_tenant("acme") == found


@pytest.fixture
def private_redis() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis.start() as server:
        yield server


async def test_what_is_used_while_redis_is_away_is_told_when_it_is_back(private_redis: EmbeddedRedis) -> None:
    client = connect(RedisConfig(url=private_redis.url, timeout_s=0.5))
    async with reached(client) as reach:
        namespaces = UsedNamespaces(client, reach)
        reach.when_back(namespaces.when_back)
        telling = asyncio.create_task(namespaces.run())
        await client.client_pause(1500)  # it hangs for longer than anybody waits
        for number in range(3):
            namespaces.used(generation("acme", number))
        with pytest.raises(UnavailableError):
            await reach.call(client.ping)
        await until(lambda: not reach.away)
        async with asyncio.timeout(5):
            while await client.zcard("{radixgate}:namespaces:acme") < 3:  # noqa: ASYNC110 - Redis tells nobody
                await asyncio.sleep(0.01)
        telling.cancel()
    await client.aclose()
