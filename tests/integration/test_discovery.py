"""Gateways find workers that register, and follow them: over a real Redis, with workers that come, go, move and die."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
import redis

from gateway.app import GatewayApp
from gateway.config import DiscoveryConfig, RedisConfig
from gateway.dispatch import registrations
from metrics.gateway import GatewayMetrics
from radixgate.v1 import admin_pb2, inference_pb2
from tests.fakes.door import Door
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import (
    ADMIN_TOKEN,
    FOUR,
    IDS,
    MANY,
    Stack,
    bearer,
    config_for,
    gateway,
    until,
)
from tests.fakes.registered import Entry, registered

FOUND = DiscoveryConfig(source="redis", poll_s=0.02, forget_s=0.2)


def addresses(app: GatewayApp) -> set[str]:
    return {link.address for link in app.serving.fleet.links()}


def connected(app: GatewayApp) -> set[str]:
    return {link.address for link in app.serving.fleet.links() if link.model is not None}


@asynccontextmanager
async def finding(redis_url: str, discovery: DiscoveryConfig = FOUND, **more: Any) -> AsyncIterator[Stack]:
    async with gateway(redis_url, [], discovery=discovery, **more) as stack:
        yield stack


@asynccontextmanager
async def at_work(redis_url: str, worker: FakeWorker, *, ttl_s: float = 30.0) -> AsyncIterator[Entry]:
    """A worker's entry, once it is there."""
    async with registered(redis_url, worker.worker_id, worker.address, ttl_s=ttl_s, model=worker.model.model) as entry:
        await until(lambda: entry.is_registered)
        yield entry


async def test_a_worker_that_registers_is_found_and_used(redis_url: str, worker: FakeWorker) -> None:
    async with finding(redis_url) as stack:
        refused = await stack.refused(**FOUR)
        assert (refused.reason, refused.code) == ("NO_WORKER", grpc.StatusCode.UNAVAILABLE)
        assert refused.retry_delay_s is not None  # it will be looked for again
        async with at_work(redis_url, worker):
            await stack.ready()
            assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)


async def test_a_worker_that_leaves_and_ends_is_forgotten(redis_url: str) -> None:
    async with finding(redis_url) as stack, FakeWorker("stays") as stays, at_work(redis_url, stays):
        async with FakeWorker("goes") as goes, at_work(redis_url, goes):
            await until(lambda: connected(stack.app) == {stays.address, goes.address})
        await until(lambda: addresses(stack.app) == {stays.address})
        assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)


async def test_a_worker_that_left_the_registry_keeps_its_link_and_its_streams(
    redis_url: str, worker: FakeWorker
) -> None:
    """As one does that drains, and ends when nothing runs on it any more."""
    async with finding(redis_url) as stack:
        async with at_work(redis_url, worker) as entry:
            await stack.ready()
            worker.hold()
            stream = asyncio.create_task(stack.generate(**MANY))
            await until(lambda: bool(worker.submits))
            await entry.registrar.leave()
            await looked_again(redis_url, stack)
            assert connected(stack.app) == {worker.address}
            worker.go()
            assert (await stream).token_ids == completion(IDS, 400)


async def looked_again(redis_url: str, stack: Stack) -> None:
    """Wait until the gateway has read the registry anew: when it has found somebody who comes only now."""
    async with registered(redis_url, "newcomer", "127.0.0.1:1"):
        await until(lambda: "127.0.0.1:1" in addresses(stack.app))
    await until(lambda: "127.0.0.1:1" not in addresses(stack.app))


async def test_a_worker_that_dies_without_a_word_is_forgotten_after_its_time_to_live(redis_url: str) -> None:
    async with finding(redis_url) as stack:
        worker = await FakeWorker("dies").start()
        entry = Entry(redis_url, "dies", worker.address, ttl_s=30.0)
        await entry.registrar._keep()  # and never again
        await until(lambda: connected(stack.app) == {worker.address})
        await worker.kill()
        await looked_again(redis_url, stack)
        assert addresses(stack.app) == {worker.address}  # it may come back
        with redis.Redis.from_url(redis_url) as client:
            client.zadd(registrations.WORKERS, {"dies": 1})  # as if the time were over
        await until(lambda: addresses(stack.app) == set())
        await entry.registrar.leave()


async def test_an_emptied_redis_ends_no_stream_and_costs_no_link(redis_url: str) -> None:
    async with AsyncExitStack() as entered:
        stack = await entered.enter_async_context(finding(redis_url))
        workers = [await entered.enter_async_context(FakeWorker(f"w{number}")) for number in range(2)]
        entries = [await entered.enter_async_context(at_work(redis_url, worker)) for worker in workers]
        await until(lambda: connected(stack.app) == {worker.address for worker in workers})
        for worker in workers:
            worker.hold()
        streams = [asyncio.create_task(stack.generate(**MANY)) for _ in range(20)]
        await until(lambda: sum(len(worker.submits) for worker in workers) == 20)
        with redis.Redis.from_url(redis_url) as client:
            names: Any = client.keys("{radixgate}:worker*")
            client.delete(*names)  # tenants are another matter
        await looked_again(redis_url, stack)
        assert connected(stack.app) == {worker.address for worker in workers}
        for worker in workers:
            worker.go()
        assert all(each.token_ids == completion(IDS, 400) for each in await asyncio.gather(*streams))
        for entry in entries:
            await entry.renewed()
        await looked_again(redis_url, stack)
        assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)


async def test_a_redis_that_is_away_costs_no_link_and_what_comes_meanwhile_is_found_when_it_is_back(
    redis_url: str,
) -> None:
    port = urlsplit(redis_url).port or 0
    async with AsyncExitStack() as entered:
        door = await entered.enter_async_context(Door("127.0.0.1", port))
        behind = redis_url.replace(f":{port}/", f":{door.port}/")
        first = await entered.enter_async_context(FakeWorker("first"))
        await entered.enter_async_context(at_work(redis_url, first))
        stack = await entered.enter_async_context(finding(behind, redis=RedisConfig(url=behind, timeout_s=10.0)))
        await stack.ready()
        await stack.generate(**FOUR)  # so that tenant and key are known
        await door.shut()
        await until(lambda: stack.app.store.reach.away)
        second = await entered.enter_async_context(FakeWorker("second"))
        await entered.enter_async_context(at_work(redis_url, second))
        assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)
        assert connected(stack.app) == {first.address}
        await door.open()
        await until(lambda: connected(stack.app) == {first.address, second.address})


async def test_a_worker_that_moved_gets_what_is_new_at_its_new_address(redis_url: str) -> None:
    async with finding(redis_url) as stack, FakeWorker("one") as old, FakeWorker("one") as new:
        async with at_work(redis_url, old) as entry:
            await stack.ready()
            old.hold()
            stream = asyncio.create_task(stack.generate(**MANY))
            await until(lambda: bool(old.submits))
            entry.told.address = new.address
            await entry.renewed()
            await until(lambda: connected(stack.app) == {old.address, new.address})
            await looked_again(redis_url, stack)
            for _ in range(3):
                await stack.generate(**FOUR)
            assert (len(old.submits), len(new.submits)) == (1, 3)
            old.go()
            assert (await stream).token_ids == completion(IDS, 400)
            await until(lambda: addresses(stack.app) == {new.address})


async def test_several_models_behind_one_gateway_get_the_requests_that_name_them(redis_url: str) -> None:
    async with finding(redis_url) as stack:
        async with FakeWorker("a", model="small") as small, FakeWorker("b", model="large") as large:
            async with at_work(redis_url, small), at_work(redis_url, large):
                await until(lambda: len(connected(stack.app)) == 2)
                credentials = bearer(stack.keys["acme"])
                listed = await stack.inference.ListModels(inference_pb2.ListModelsRequest(), metadata=credentials)
                assert [model.name for model in listed.models] == ["large", "small"]
                await stack.generate(model="small", **FOUR)
                for _ in range(2):
                    await stack.generate(model="large", **FOUR)
                assert (len(small.submits), len(large.submits)) == (1, 2)
                assert set((await stack.refused(**FOUR)).fields) == {"model"}
            await large.kill()
            await until(lambda: addresses(stack.app) == {small.address})
            assert (await stack.refused(model="large", **FOUR)).reason == "NO_WORKER"


async def test_three_gateways_see_the_same_workers(redis_url: str) -> None:
    async with AsyncExitStack() as entered:
        config = config_for(redis_url, [], discovery=FOUND)
        apps = [await entered.enter_async_context(GatewayApp(config)) for _ in range(3)]
        workers = [await entered.enter_async_context(FakeWorker(f"w{number}")) for number in range(3)]
        for worker in workers:
            await entered.enter_async_context(at_work(redis_url, worker))
        everybody = {worker.address for worker in workers}
        await until(lambda: all(connected(app) == everybody for app in apps))


async def test_two_hundred_entries_are_two_hundred_links_and_none_when_they_are_gone(redis_url: str) -> None:
    async with finding(redis_url) as stack:
        entries = [Entry(redis_url, f"w{number}", f"127.0.0.1:{1 + number}") for number in range(200)]
        for entry in entries:
            await entry.registrar._keep()
        await until(lambda: len(addresses(stack.app)) == 200, timeout_s=30)
        for entry in entries:
            await entry.registrar._take_away()
        await until(lambda: addresses(stack.app) == set(), timeout_s=30)
        assert stack.app.serving.control._keepers == {}
        for entry in entries:
            await entry.registrar.leave()


async def test_entries_that_are_none_make_no_links(redis_url: str, worker: FakeWorker) -> None:
    with redis.Redis.from_url(redis_url) as client:
        for number, text in enumerate(("{", '{"worker_id": "bad-1", "address": "unix:/run/some.sock"}')):
            client.hset(f"{registrations.ENTRY}bad-{number}", "document", text)
            client.zadd(registrations.CHANGED, {f"bad-{number}": 1})
            client.zadd(registrations.WORKERS, {f"bad-{number}": 1e13})
    async with finding(redis_url) as stack, at_work(redis_url, worker):
        await stack.ready()
        await looked_again(redis_url, stack)
        assert addresses(stack.app) == {worker.address}


async def test_workers_that_do_not_register_are_beside_those_that_do(redis_url: str) -> None:
    async with FakeWorker("fixed") as fixed, FakeWorker("found") as found:
        discovery = DiscoveryConfig(source="redis", poll_s=0.02, forget_s=0.05, extra_workers=(fixed.address,))
        async with finding(redis_url, discovery) as stack, at_work(redis_url, found):
            await until(lambda: connected(stack.app) == {fixed.address, found.address})
            await fixed.kill()
            await until(lambda: connected(stack.app) == {found.address})
        assert fixed.address in addresses(stack.app)


async def test_a_worker_that_joins_later_gets_the_adapters_that_are_registered(redis_url: str) -> None:
    async with finding(redis_url) as stack, FakeWorker("early") as early, at_work(redis_url, early):
        await stack.ready()
        request = admin_pb2.RegisterAdapterRequest(name="poet", path="/adapters/r1")
        await stack.admin.RegisterAdapter(request, metadata=bearer(ADMIN_TOKEN), timeout=30)
        async with FakeWorker("late") as late, at_work(redis_url, late):
            await until(lambda: bool(late.loads))
            assert late.loads[0].path == "/adapters/r1"
            await until(lambda: stack.app.serving.control.pending()["adapter_load"]() == 0)


async def test_what_is_said_of_a_worker_that_is_gone_goes_with_it(redis_url: str) -> None:
    observer = GatewayMetrics()
    async with GatewayApp(config_for(redis_url, [], discovery=FOUND), observer) as app:
        observer.runs("1", app.serving.fleet.in_flight, app.serving.control.pending())

        def about(address: str) -> set[str]:
            return {
                sample.name
                for family in observer.registry.collect()
                for sample in family.samples
                if sample.labels.get("worker") == address
            }

        def value(name: str, **labels: str) -> float | None:
            return observer.registry.get_sample_value(name, labels)

        async with FakeWorker("goes") as goes, at_work(redis_url, goes):
            await until(lambda: connected(app) == {goes.address})
            assert {"radixgate_gateway_worker_connected", "radixgate_gateway_in_flight_requests"} <= about(goes.address)
            assert value("radixgate_gateway_registered_workers") == 1
        await until(lambda: addresses(app) == set())
        await until(lambda: about(goes.address) == set())
        assert value("radixgate_gateway_registered_workers") == 0
        assert value("radixgate_gateway_worker_changes_total", change="joined") == 1
        assert value("radixgate_gateway_worker_changes_total", change="left") == 1


async def test_static_lists_do_not_look_into_the_registry(redis_url: str, worker: FakeWorker) -> None:
    async with FakeWorker("other") as other, at_work(redis_url, other):
        async with gateway(redis_url, [worker]) as stack:
            assert stack.app.serving.discovery is None
            assert addresses(stack.app) == {worker.address}


def test_extra_workers_go_with_the_registry_alone() -> None:
    with pytest.raises(ValueError, match="extra_workers"):
        DiscoveryConfig(extra_workers=("a:1",))
