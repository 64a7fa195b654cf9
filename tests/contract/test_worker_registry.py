"""Workers write the registry, gateways read it: both mean the same by it, over a real Redis."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import redis
from redis.asyncio import Redis

from cli.embedded_redis import EmbeddedRedis
from gateway.config import RedisConfig
from gateway.dispatch import registrations
from gateway.dispatch.registrations import Registrations
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import connect
from gateway.observer import NullObserver
from radixgate.v1 import worker_pb2
from tests.fakes.door import Door
from tests.fakes.gateway_stack import until
from tests.fakes.registered import Entry, registered
from worker.registry import keys
from worker.registry.entry import MAX_BYTES, document


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    client = connect(RedisConfig(url=redis_url))
    yield client
    await client.aclose()


@pytest.fixture
def reader(client: Redis) -> Registrations:
    return make_reader(client)


def make_reader(client: Redis, max_workers: int = registrations.MAX_WORKERS) -> Registrations:
    return Registrations(client, StoreReach(client, 10.0, NullObserver()), max_workers)


async def addresses(reader: Registrations) -> dict[str, str]:
    return {worker_id: worker.address for worker_id, worker in (await reader.read()).workers.items()}


def test_both_sides_name_the_same_keys() -> None:
    ours = (keys.ENTRY, keys.WORKERS, keys.CHANGED, keys.NUMBER)
    assert ours == (registrations.ENTRY, registrations.WORKERS, registrations.CHANGED, registrations.NUMBER)
    # What a user of Redis that is for workers alone is allowed, see the chart.
    assert all(key.startswith("{radixgate}:worker") for key in ours)
    assert MAX_BYTES == registrations.MAX_BYTES


async def test_what_a_worker_registers_is_what_gateways_read(redis_url: str, reader: Registrations) -> None:
    assert await addresses(reader) == {}
    async with registered(redis_url, "one", "10.0.0.1:50061", model="large") as entry:
        await until(lambda: entry.is_registered)
        (worker,) = (await reader.read()).workers.values()
        told = (worker.worker_id, worker.address, worker.model, worker.incarnation)
        assert told == ("one", "10.0.0.1:50061", "large", entry.told.incarnation)
    assert await addresses(reader) == {}


async def test_reading_again_brings_the_same_object_until_something_changes(
    redis_url: str, reader: Registrations
) -> None:
    async with registered(redis_url, "one", "one:1") as one, registered(redis_url, "two", "two:1") as two:
        await until(lambda: one.is_registered and two.is_registered)
        before = await reader.read()
        await two.renewed()
        assert await reader.read() is before
        two.told.address = "two:2"
        await two.renewed()
        assert await addresses(reader) == {"one": "one:1", "two": "two:2"}


async def test_a_worker_that_died_is_forgotten_after_its_time_to_live(redis_url: str, reader: Registrations) -> None:
    dead = Entry(redis_url, "dead", "dead:1", ttl_s=0.5)
    await dead.registrar._keep()
    async with registered(redis_url, "alive", "alive:1") as alive:
        await until(lambda: alive.is_registered)
        assert "alive" in await addresses(reader)
        async with asyncio.timeout(20):
            while "dead" in await addresses(reader):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.02)
        assert await addresses(reader) == {"alive": "alive:1"}
    await dead.registrar.leave()


async def test_a_second_worker_of_one_id_is_refused_while_the_first_lives(
    redis_url: str, reader: Registrations
) -> None:
    async with registered(redis_url, "one", "first:1") as first:
        await until(lambda: first.is_registered)
        async with registered(redis_url, "one", "second:1") as second:
            await second.renewed()
            assert set(second.outcomes.told) == {"taken"}
            assert await addresses(reader) == {"one": "first:1"}
            await first.registrar.leave()
            await second.renewed()
            assert second.is_registered
            assert await addresses(reader) == {"one": "second:1"}


async def test_one_that_was_refused_takes_nothing_along_when_it_leaves(redis_url: str, reader: Registrations) -> None:
    async with registered(redis_url, "one", "first:1") as first:
        await until(lambda: first.is_registered)
        async with registered(redis_url, "one", "second:1") as second:
            await until(lambda: "taken" in second.outcomes.told)
        assert await addresses(reader) == {"one": "first:1"}


async def test_a_process_that_comes_back_at_its_address_need_not_wait(redis_url: str, reader: Registrations) -> None:
    killed = Entry(redis_url, "one", "here:1", ttl_s=1000.0)
    await killed.registrar._keep()
    async with registered(redis_url, "one", "here:1") as again:
        await until(lambda: again.is_registered)
        assert (await reader.read()).workers["one"].incarnation == again.told.incarnation
        # The other one lives after all: it sees that its entry is another's, and they do not take turns.
        await killed.registrar._keep()
        assert killed.outcomes.told == ["ok", "taken"]
        assert (await reader.read()).workers["one"].incarnation == again.told.incarnation
    await killed.registrar.leave()


async def test_an_emptied_database_is_filled_again_and_read_again(
    redis_url: str, client: Redis, reader: Registrations
) -> None:
    async with registered(redis_url, "one", "one:1") as one, registered(redis_url, "two", "two:1") as two:
        await until(lambda: one.is_registered and two.is_registered)
        assert len(await addresses(reader)) == 2
        await client.flushall()
        assert await addresses(reader) == {}
        await one.renewed()
        assert await addresses(reader) == {"one": "one:1"}
        await two.renewed()
        assert await addresses(reader) == {"one": "one:1", "two": "two:1"}


async def test_a_database_that_is_set_back_is_read_as_it_is(
    redis_url: str, client: Redis, reader: Registrations
) -> None:
    async with registered(redis_url, "one", "one:1") as one:
        await until(lambda: one.is_registered)
        assert await addresses(reader) == {"one": "one:1"}
        await client.set(keys.NUMBER, 5)
        await client.zadd(keys.CHANGED, {"one": 4})
        await client.hset(
            keys.ENTRY + "one",
            "document",
            document(worker_pb2.WorkerRegistration(worker_id="one", address="other:1")),
        )
        assert await addresses(reader) == {"one": "other:1"}


async def test_what_is_no_registration_is_left_out(redis_url: str, client: Redis, reader: Registrations) -> None:
    async with registered(redis_url, "good", "good:1") as good:
        await until(lambda: good.is_registered)
        for number, text in enumerate(("", "{", "[]", '{"worker_id": "other", "address": "a:1"}', "x" * 70_000)):
            await client.hset(f"{keys.ENTRY}bad-{number}", "document", text)
            await client.zadd(keys.CHANGED, {f"bad-{number}": 1})
            await client.zadd(keys.WORKERS, {f"bad-{number}": 1e13})
        read = await reader.read()
        assert set(read.workers) == {"good"}
        assert read.num_ignored == 5


@pytest.mark.parametrize("what", ["id", "document", "kind", "score"])
async def test_what_is_not_even_text_or_an_entry_hides_nobody(
    redis_url: str, client: Redis, reader: Registrations, what: str
) -> None:
    async with registered(redis_url, "good", "good:1") as good:
        await until(lambda: good.is_registered)
        worker_id = b"\xff\xfe" if what == "id" else b"bad"
        key = keys.ENTRY.encode() + worker_id
        if what == "kind":
            await client.set(key, "no hash")
        else:
            text = b'{"worker_id": "\xff"}' if what == "document" else b'{"worker_id": "bad", "address": "bad:1"}'
            await client.hset(key, "document", text)
        await client.zadd(keys.CHANGED, {worker_id: float("-inf") if what == "score" else 1})
        await client.zadd(keys.WORKERS, {worker_id: float("inf")})
        for _ in range(2):
            read = await reader.read()
            assert set(read.workers) - {"bad"} == {"good"}
            assert len(read.workers) + read.num_ignored == 2
            await client.incr(keys.NUMBER)  # it is read once more
        await client.delete(key)


@pytest.mark.parametrize("number", ["none", "1e300", "nan", "-5"])
async def test_a_number_that_is_none_or_cannot_rise_keeps_nobody_from_being_found(
    redis_url: str, client: Redis, reader: Registrations, number: str
) -> None:
    async with registered(redis_url, "one", "one:1") as one, contextlib.AsyncExitStack() as stack:
        await until(lambda: one.is_registered)
        assert set(await addresses(reader)) == {"one"}
        await client.set(keys.NUMBER, number)
        assert set(await addresses(reader)) == {"one"}
        two = await stack.enter_async_context(registered(redis_url, "two", "two:1"))
        await until(lambda: two.is_registered)
        assert set(await addresses(reader)) == {"one", "two"}
        await client.set(keys.NUMBER, number)
        await client.zadd(keys.WORKERS, {"two": 1})
        assert set(await addresses(reader)) == {"one"}


async def test_more_workers_than_are_taken_leave_those_that_came_first(redis_url: str, client: Redis) -> None:
    entries = [Entry(redis_url, f"w{number}", f"w{number}:1") for number in range(6)]
    for entry in entries:
        await entry.registrar._keep()
    reader = make_reader(client, max_workers=4)
    read = await reader.read()
    assert (set(read.workers), read.num_ignored) == ({"w0", "w1", "w2", "w3"}, 2)
    await entries[0].registrar._take_away()
    read = await reader.read()
    assert (set(read.workers), read.num_ignored) == ({"w1", "w2", "w3", "w4"}, 1)
    for entry in entries:
        await entry.registrar.leave()


async def test_many_long_entries_come_in_several_answers(redis_url: str, client: Redis) -> None:
    entries = [Entry(redis_url, f"w{number}", f"w{number}:1") for number in range(60)]
    for entry in entries:
        entry.told.adapters.extend(f"adapter-{number:04}" for number in range(3000))  # 45 KB
        await entry.registrar._keep()
    assert len(await addresses(make_reader(client))) == 60
    for entry in entries:
        await entry.registrar.leave()


def test_an_entry_that_would_be_too_long_names_no_adapters() -> None:
    told = worker_pb2.WorkerRegistration(worker_id="one", address="one:1")
    told.adapters.extend(f"an-adapter-with-a-long-name-{number}" for number in range(5000))
    assert len(document(told)) < 200


async def test_redis_that_comes_later_gets_the_entry_then(redis_url: str, reader: Registrations) -> None:
    url = urlsplit(redis_url)
    async with Door("127.0.0.1", url.port or 0) as door:
        await door.shut()
        behind = redis_url.replace(f":{url.port}/", f":{door.port}/")
        async with registered(behind, "one", "one:1") as one:
            await until(lambda: one.outcomes.told.count("away") >= 2)
            await door.open()
            await until(lambda: one.is_registered)
            assert await addresses(reader) == {"one": "one:1"}


async def test_a_worker_is_registered_again_whatever_was_in_its_place(
    redis_url: str, client: Redis, reader: Registrations
) -> None:
    await client.hset(keys.ENTRY + "one", "incarnation", b"\xff")
    async with registered(redis_url, "one", "one:1") as one:
        await until(lambda: one.outcomes.told.count("away") >= 2)
        await client.delete(keys.ENTRY + "one")
        await until(lambda: one.is_registered)
        assert await addresses(reader) == {"one": "one:1"}


async def test_a_worker_registers_with_the_master_that_took_over(
    redis_url: str, client: Redis, reader: Registrations
) -> None:
    url = urlsplit(redis_url)
    with EmbeddedRedis.start() as other, redis.Redis.from_url(other.url) as first:
        first.config_set("requirepass", url.password or "")
        async with Door("127.0.0.1", urlsplit(other.url).port or 0) as door:
            async with registered(redis_url.replace(f":{url.port}/", f":{door.port}/"), "one", "one:1") as one:
                await until(lambda: one.is_registered)
                first.replicaof("127.0.0.1", 1)  # connections to it stay, and take no writes
                door.lead_to("127.0.0.1", url.port or 0)
                await one.renewed()
                await until(lambda: one.is_registered)
                assert await addresses(reader) == {"one": "one:1"}


async def test_a_worker_ends_without_redis_as_well(redis_url: str, reader: Registrations) -> None:
    url = urlsplit(redis_url)
    async with Door("127.0.0.1", url.port or 0) as door:
        async with registered(redis_url.replace(f":{url.port}/", f":{door.port}/"), "one", "one:1") as one:
            await until(lambda: one.is_registered)
            await door.shut()
        assert one.outcomes.told[-1] == "gone"
    assert await addresses(reader) == {"one": "one:1"}  # left to expire


async def test_a_user_of_redis_that_may_touch_these_keys_alone_is_enough(
    redis_url: str, client: Redis, reader: Registrations
) -> None:
    await client.acl_setuser(
        "worker",
        enabled=True,
        reset=True,
        passwords=["+secret"],
        keys=["{radixgate}:worker*"],
        commands=["-@all", *keys.COMMANDS],
    )
    url = f"redis://worker:secret@127.0.0.1:{urlsplit(redis_url).port}/0"
    try:
        async with registered(url, "one", "one:1") as one:
            await one.renewed()
            assert one.is_registered
            assert await addresses(reader) == {"one": "one:1"}
        assert one.outcomes.told[-1] == "gone"
        assert await addresses(reader) == {}
        with redis.Redis.from_url(url) as limited, pytest.raises(redis.exceptions.NoPermissionError):
            limited.get("{radixgate}:extra-key-secret")
    finally:
        await client.acl_deluser("worker")
