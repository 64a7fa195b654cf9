"""Registered adapters over restarts of workers and gateways, without Redis, and with several gateways."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest

from cli.embedded_redis import EmbeddedRedis
from radixgate.v1 import worker_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import FOUR, Stack, gateway, until
from tests.integration.registered_adapters import (
    NEW,
    NEXT,
    OLD,
    eventually,
    given_revisions,
    has_adapter,
    refusal,
    register,
    registered,
    revisions,
    split,
    traffic,
    unregister,
    until_refused,
)


@pytest.fixture
async def workers() -> AsyncIterator[list[FakeWorker]]:
    async with FakeWorker("one") as one, FakeWorker("two") as two:
        yield [one, two]


@pytest.fixture
async def stack(redis_url: str, workers: list[FakeWorker]) -> AsyncIterator[Stack]:
    async with gateway(redis_url, workers, tenants=["acme", "globex"]) as running:
        yield running


async def test_adapters_outlive_every_gateway(redis_url: str, workers: list[FakeWorker]) -> None:
    async with gateway(redis_url, workers) as stack:
        await register(stack, OLD)
        await register(stack, NEW, 40)
        before = await given_revisions(stack, workers, 50)
        keys = stack.keys
    async with gateway(redis_url, workers, tenants=()) as stack:
        stack.keys.update(keys)
        assert traffic(await registered(stack)) == {OLD: 60, NEW: 40}
        assert await given_revisions(stack, workers, 50) == before


async def test_a_worker_that_starts_gets_what_it_lacks(stack: Stack, workers: list[FakeWorker]) -> None:
    await register(stack, OLD)
    await register(stack, NEW, 40)
    one = workers[0]
    await one.kill()
    one.adapters = []
    await one.start(one.address)
    await one.until(lambda: revisions(one) == {OLD, NEW})


async def test_a_worker_that_was_away_loses_what_is_no_longer_wanted(stack: Stack, workers: list[FakeWorker]) -> None:
    await register(stack, OLD)
    one = workers[0]
    await one.kill()
    await until(lambda: stack.observer.workers.total() == 1)
    await register(stack, NEW)
    assert {each.worker: each.error for each in (await registered(stack)).placements}[one.address] == "not connected"
    await one.start(one.address)
    await one.until(lambda: revisions(one) == {NEW})


async def test_what_workers_have_from_elsewhere_is_left_alone(stack: Stack, workers: list[FakeWorker]) -> None:
    one = workers[0]
    others = [
        worker_pb2.Adapter(name="poet", revision=NEXT, tenants=["x"]),
        worker_pb2.Adapter(name="bard", revision=NEXT),
    ]
    one.tell_adapters(*others)
    await register(stack, OLD, tenants=["acme"])
    await register(stack, NEW, tenants=["acme"])
    await one.until(lambda: {each.revision for each in one.adapters} == {NEXT, NEW})
    assert all(other in one.adapters for other in others)
    assert {unload.revision for unload in one.unloads} == {OLD}


async def test_a_folder_with_other_weights_by_now_is_not_used_and_placements_say_so(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    await register(stack, OLD)
    one, two = workers
    await one.kill()
    one.adapters, one.folders = [], {f"/adapters/{OLD}": NEXT}
    await one.start(one.address)
    await one.until(lambda: bool(one.unloads))
    assert revisions(one) == set()
    place = {each.worker: each for each in (await registered(stack)).placements}[one.address]
    assert not place.loaded
    assert NEXT in place.error
    assert await given_revisions(stack, [two], 4) == {OLD: 4}
    one.folders = {}  # put right, it is taken up without anybody's doing
    await one.until(lambda: revisions(one) == {OLD})


async def test_a_worker_that_fails_is_asked_again_and_its_reason_is_shown(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    await register(stack, OLD)
    one = workers[0]
    await one.kill()
    one.adapters, one.loads, one.refuses_loads = [], [], "no such folder"
    await one.start(one.address)
    await one.until(lambda: len(one.loads) >= 2)
    place = {each.worker: each for each in (await registered(stack)).placements}[one.address]
    assert (place.loaded, "no such folder" in place.error) == (False, True)
    one.refuses_loads = None
    await one.until(lambda: revisions(one) == {OLD})


async def test_where_the_chosen_revision_is_nowhere_the_other_one_answers(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    await register(stack, OLD)
    await register(stack, NEW, 50)
    for worker in workers:
        worker.refuses_loads = "no"
        worker.tell_adapters(*(each for each in worker.adapters if each.revision == OLD))
    await stack.generate(adapter="poet", **FOUR)
    assert await given_revisions(stack, workers, 20) == {OLD: 20}


async def test_a_registered_adapter_that_no_connected_worker_has_is_unavailable(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    await register(stack, OLD)
    for worker in workers:
        worker.refuses_loads = "no"
        worker.tell_adapters()
    await until_refused(stack, grpc.StatusCode.UNAVAILABLE, adapter="poet")
    refused = await stack.refused(adapter="poet", **FOUR)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_WORKER")


async def test_without_redis_what_is_registered_goes_on(workers: list[FakeWorker]) -> None:
    with EmbeddedRedis.start() as redis:
        async with gateway(redis.url, workers) as stack:
            await register(stack, OLD)
            await register(stack, NEW, 40)
            before = await given_revisions(stack, workers, 30)
            await asyncio.to_thread(redis.stop)
            assert await given_revisions(stack, workers, 30) == before
            for call in (register(stack, NEXT), split(stack, NEW, 100), unregister(stack), registered(stack)):
                assert (await refusal(call)).code is grpc.StatusCode.UNAVAILABLE
            assert await given_revisions(stack, workers, 30) == before


# --------------------------------------------------------------------------------------------------- several gateways


@contextlib.asynccontextmanager
async def two_gateways(redis_url: str, workers: list[FakeWorker]) -> AsyncIterator[tuple[Stack, Stack]]:
    async with gateway(redis_url, workers) as one, gateway(redis_url, workers, tenants=()) as other:
        other.keys.update(one.keys)
        yield one, other


async def test_what_one_gateway_is_told_the_others_follow(redis_url: str, workers: list[FakeWorker]) -> None:
    async with two_gateways(redis_url, workers) as (one, other):
        await register(one, OLD)
        await register(one, NEW)

        async def follows() -> bool:
            return await given_revisions(other, workers, 4) == {NEW: 4}

        await eventually(follows)
        assert traffic(await registered(other)) == {NEW: 100}
        await unregister(other)
        await until_refused(one, grpc.StatusCode.NOT_FOUND, adapter="poet")


async def test_gateways_do_not_fight_over_workers(redis_url: str, workers: list[FakeWorker]) -> None:
    async with two_gateways(redis_url, workers) as (one, other):
        for number in range(4):
            await register(one if number % 2 else other, str(number) * 16)
        last = "3" * 16
        for worker in workers:
            await worker.until(lambda worker=worker: revisions(worker) == {last})
        num_loads = [len(worker.loads) for worker in workers]
        await asyncio.sleep(1.0)  # whoever fights goes on
        assert [len(worker.loads) for worker in workers] == num_loads
        assert [revisions(worker) for worker in workers] == [{last}, {last}]


async def test_requests_that_run_while_weights_change_over_all_end_well(
    redis_url: str, workers: list[FakeWorker]
) -> None:
    async with two_gateways(redis_url, workers) as (one, other):
        await register(one, "0" * 16)
        done: list[int] = []
        stop = asyncio.Event()

        async def keep_asking(stack: Stack) -> None:
            while not stop.is_set():
                await stack.generate(adapter="poet", **FOUR)
                done.append(1)

        await eventually(lambda: has_adapter(other))
        asking = [asyncio.create_task(keep_asking(stack)) for stack in (one, other) for _ in range(2)]
        for number in range(1, 3):
            await register(one, str(number) * 16)
            for worker in workers:
                await worker.until(lambda worker=worker, n=number: revisions(worker) == {str(n) * 16})
        stop.set()
        await asyncio.gather(*asking)
        assert len(done) > 20
