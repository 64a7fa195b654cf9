"""Documents that all gateways share: written by those who have seen all, and never read backwards."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest
from redis.asyncio import Redis

from gateway.config import RedisConfig
from gateway.control.registrations import AdapterKey, Registration, Weights
from gateway.control.registry import AdapterRegistry
from gateway.control.shelf import Shelf, Shelved
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import connect
from gateway.observer import NullObserver
from tests.fakes.gateway_stack import until

ResultT = TypeVar("ResultT")


class SlowReach(StoreReach):
    """Hands on what Redis has answered when a test says so."""

    def __init__(self, client: Redis) -> None:
        super().__init__(client, 2.0, NullObserver())
        self.gates: list[asyncio.Event] = []
        self.num_answered = 0

    async def call(self, make: Callable[[], Awaitable[ResultT]]) -> ResultT:
        gate = asyncio.Event()
        self.gates.append(gate)
        answer = await super().call(make)
        self.num_answered += 1
        await gate.wait()
        return answer


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    made = connect(RedisConfig(url=redis_url))
    yield made
    await made.aclose()


def shelf(client: Redis) -> Shelf:
    return Shelf(client, StoreReach(client, 2.0, NullObserver()), "things")


async def test_what_one_has_written_the_other_reads(client: Redis) -> None:
    one, other = shelf(client), shelf(client)
    assert await one.read() == Shelved("", {})
    assert await one.write(await one.read(), {"a": "1", "b": "2"})
    assert (await other.read()).documents == {"a": "1", "b": "2"}
    assert await other.write(await other.read(), {"a": None, "c": "3"})
    assert (await one.read()).documents == {"b": "2", "c": "3"}


async def test_who_has_not_seen_the_last_change_writes_nothing(client: Redis) -> None:
    one, other = shelf(client), shelf(client)
    seen = await one.read()
    await other.write(await other.read(), {"a": "1"})
    assert not await one.write(seen, {"a": "2"})
    assert (await one.read()).documents == {"a": "1"}


async def test_without_a_change_nothing_is_sent_again(client: Redis) -> None:
    one = shelf(client)
    await one.write(await one.read(), {"a": "1"})
    assert await one.read() is await one.read()


async def test_a_redis_that_has_lost_everything_is_believed(client: Redis) -> None:
    one = shelf(client)
    await one.write(await one.read(), {"a": "1"})
    await one.read()
    await client.flushall()
    assert (await one.read()).documents == {}
    assert await one.write(await one.read(), {"b": "2"})


async def test_every_change_raises_the_counter_that_gateways_watch(client: Redis) -> None:
    one = shelf(client)
    await one.write(await one.read(), {"a": "1"})
    before = int(await client.get("{radixgate}:changes") or 0)
    await one.write(await one.read(), {"a": "2"})
    assert int(await client.get("{radixgate}:changes") or 0) == before + 1


async def test_an_answer_that_comes_late_does_not_bring_back_the_past(client: Redis) -> None:
    reach = SlowReach(client)
    slow = Shelf(client, reach, "things")
    early = asyncio.create_task(slow.read())
    await until(lambda: reach.num_answered == 1)
    await shelf(client).write(Shelved(), {"a": "1"})
    late = asyncio.create_task(slow.read())
    await until(lambda: reach.num_answered == 2)
    reach.gates[1].set()
    assert (await late).documents == {"a": "1"}
    reach.gates[0].set()
    assert (await early).documents == {"a": "1"}


async def test_operators_who_change_different_adapters_at_a_time_all_succeed(client: Redis) -> None:
    def registry() -> AdapterRegistry:
        return AdapterRegistry(Shelf(client, StoreReach(client, 2.0, NullObserver()), "adapters"))

    async def register(number: int) -> Registration:
        weights = Weights(f"{number:016}", f"/{number}", 1.0)
        key = AdapterKey("tiny", f"poet-{number}", frozenset())
        return await registry().change(key, lambda before: before.with_weights(weights, 100, 2.0), 2.0)

    await asyncio.gather(*(register(number) for number in range(12)))
    last = registry()
    await last.refresh()
    assert len(last.all()) == 12
