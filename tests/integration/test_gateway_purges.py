"""Purges: what a tenant has cached is freed on every worker, now or when it is back; nobody else's ever is."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import redis

from gateway.config import RoutingConfig
from radixgate.v1 import admin_pb2, worker_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, FOUR, IDS, Refusal, Stack, bearer, gateway, until

ADMIN = bearer(ADMIN_TOKEN)
Namespace = tuple[bytes, str]


async def invalidate(stack: Stack, tenant_id: str = "acme", *, purge: bool = True, adapter: str = "") -> Any:
    request = admin_pb2.InvalidateCacheRequest(tenant_id=tenant_id, adapter=adapter, purge=purge)
    return await stack.admin.InvalidateCache(request, metadata=ADMIN, timeout=20)


def used(workers: list[FakeWorker], tenant_id: str) -> set[Namespace]:
    """Return the namespaces that workers were sent of a tenant."""
    submits = [submit for worker in workers for submit in worker.submits if submit.tenant == tenant_id]
    return {(segment.extra_key, submit.adapter_revision) for submit in submits for segment in submit.prompt}


@pytest.fixture
async def workers() -> AsyncIterator[list[FakeWorker]]:
    async with FakeWorker("one") as one, FakeWorker("two") as two:
        for worker in (one, two):
            worker.adapters = [worker_pb2.Adapter(name="poet", revision="r1")]
        yield [one, two]


@pytest.fixture
async def stack(redis_url: str, workers: list[FakeWorker]) -> AsyncIterator[Stack]:
    turns = RoutingConfig(policy="round_robin")
    async with gateway(redis_url, workers, tenants=["acme", "globex"], routing=turns) as running:
        yield running


async def fill(stack: Stack, tenant_id: str = "acme") -> None:
    """Have something in two scopes, and of an adapter, on both workers."""
    for more in ({}, {"scope": "one"}, {"adapter": "poet"}):
        for _ in range(2):  # workers take turns
            await stack.generate(tenant_id, **more, **FOUR)


async def test_a_purge_frees_every_namespace_of_the_tenant_on_every_worker(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    await fill(stack)
    await fill(stack, "globex")
    answer = await invalidate(stack)
    assert (answer.purged.namespaces, list(answer.purged.unreachable_workers)) == (3, [])
    assert answer.purged.device_tokens > 0
    for worker in workers:
        assert set(worker.drops) == used(workers, "acme")
        assert not set(worker.drops) & used(workers, "globex")


async def test_without_purge_nothing_is_freed_and_nothing_is_found(stack: Stack, workers: list[FakeWorker]) -> None:
    await fill(stack)
    answer = await invalidate(stack, purge=False)
    assert not answer.HasField("purged")
    assert [worker.drops for worker in workers] == [[], []]
    for _ in range(2):
        assert (await stack.generate(**FOUR)).usage.cached.device == 0


async def test_a_purge_of_an_adapter_leaves_the_rest(stack: Stack, workers: list[FakeWorker]) -> None:
    await fill(stack)
    answer = await invalidate(stack, adapter="poet")
    assert answer.purged.namespaces == 1
    assert {revision for _, revision in workers[0].drops} == {"r1"}
    for _ in workers:
        assert (await stack.generate(**FOUR)).usage.cached.device == len(IDS) - 1
    for _ in workers:
        assert (await stack.generate(adapter="poet", **FOUR)).usage.cached.device == 0


async def test_a_second_purge_has_only_what_was_used_since(stack: Stack) -> None:
    await fill(stack)
    assert (await invalidate(stack)).purged.namespaces == 3
    assert (await invalidate(stack)).purged.namespaces == 0
    await stack.generate(**FOUR)
    assert (await invalidate(stack)).purged.namespaces == 1


async def test_requests_that_run_are_not_disturbed_by_a_purge(stack: Stack, workers: list[FakeWorker]) -> None:
    for worker in workers:
        worker.hold()
    running = asyncio.create_task(stack.generate(**FOUR))
    await until(lambda: sum(worker.num_running for worker in workers) == 1)
    await invalidate(stack)
    for worker in workers:
        worker.go()
    assert len((await running).token_ids) == 4


async def test_what_another_gateway_has_just_used_is_purged_as_well(redis_url: str, workers: list[FakeWorker]) -> None:
    async with gateway(redis_url, workers) as one, gateway(redis_url, workers, tenants=()) as other:
        other.keys.update(one.keys)
        await fill(other)
        assert (await invalidate(one)).purged.namespaces == 3


async def test_a_worker_that_is_away_is_named_and_purged_when_it_is_back(
    redis_url: str, workers: list[FakeWorker]
) -> None:
    two = workers[1]
    async with gateway(redis_url, workers) as stack:
        await fill(stack)
        await two.kill()
        await until(lambda: stack.observer.workers.total() == 1)
        answer = await invalidate(stack)
        assert list(answer.purged.unreachable_workers) == [two.address]
        keys = stack.keys
    # Whoever asked has gone; another gateway sees to it.
    async with gateway(redis_url, [workers[0].address, two.address], tenants=()) as later:
        later.keys.update(keys)
        await later.ready()
        assert two.drops == []
        await two.start(two.address)
        await two.until(lambda: set(two.drops) == used(workers, "acme"))
        await until(lambda: pending(redis_url, two) == 0)


async def test_a_worker_lost_during_a_purge_has_the_rest_later(stack: Stack, workers: list[FakeWorker]) -> None:
    await fill(stack)
    two = workers[1]
    two.loses_drops = 1
    answer = await invalidate(stack)
    # It comes back within milliseconds; what was lost with the connection is done then.
    assert list(answer.purged.unreachable_workers) == [two.address]
    await two.until(lambda: set(two.drops) == used(workers, "acme"))


def pending(redis_url: str, worker: FakeWorker) -> int:
    with redis.Redis.from_url(redis_url) as client:
        return int(client.zcard(f"{{radixgate}}:purges:{worker.address}"))


async def test_many_namespaces_are_dropped_in_calls_of_a_thousand(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as stack:
        await stack.generate(**FOUR)
        with redis.Redis.from_url(redis_url) as client:
            members = {f"{number:032x}::": number for number in range(2500)}
            client.zadd("{radixgate}:namespaces:acme", members)
        assert (await invalidate(stack)).purged.namespaces == 2501
        assert sorted(worker.drop_sizes) == [501, 1000, 1000]


async def test_a_deleted_tenants_cache_is_purged(stack: Stack, workers: list[FakeWorker]) -> None:
    await fill(stack)
    deleted = await stack.admin.DeleteTenant(
        admin_pb2.DeleteTenantRequest(tenant_id="acme"), metadata=ADMIN, timeout=20
    )
    assert deleted.purged.namespaces == 3
    for worker in workers:
        assert set(worker.drops) == used(workers, "acme")


async def test_an_unknown_tenant_has_no_cache(stack: Stack) -> None:
    for call in (
        invalidate(stack, "nobody"),
        stack.admin.GetCacheStats(admin_pb2.GetCacheStatsRequest(tenant_id="nobody"), metadata=ADMIN),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert Refusal.of(refused.value).reason == "TENANT_NOT_FOUND"


async def test_cache_statistics_are_those_of_every_worker(stack: Stack, workers: list[FakeWorker]) -> None:
    one, two = workers
    acme = worker_pb2.TenantCache(tenant="acme", device_tokens=5, host_tokens=6, namespaces=2)
    shared = worker_pb2.TenantCache(device_tokens=7, namespaces=1)
    one.cache = worker_pb2.DescribeCacheResponse(
        device_slots=100, device_free_slots=40, host_slots=50, host_free_slots=20, tenants=[acme, shared]
    )
    await two.kill()
    await until(lambda: stack.observer.workers.total() == 1)
    answer = await stack.admin.GetCacheStats(admin_pb2.GetCacheStatsRequest(), metadata=ADMIN, timeout=10)
    first, second = answer.workers
    assert (first.worker, first.model, first.reachable) == (one.address, "tiny", True)
    assert (first.device_slots, first.device_free_slots, first.host_slots, first.host_free_slots) == (100, 40, 50, 20)
    assert [(each.tenant_id, each.device_tokens, each.host_tokens, each.namespaces) for each in first.tenants] == [
        ("acme", 5, 6, 2), ("", 7, 0, 1),
    ]  # fmt: skip
    assert second == admin_pb2.WorkerCacheStats(worker=two.address, model="tiny", reachable=False)
    of_acme = await stack.admin.GetCacheStats(
        admin_pb2.GetCacheStatsRequest(tenant_id="acme"), metadata=ADMIN, timeout=10
    )
    assert [each.tenant_id for each in of_acme.workers[0].tenants] == ["acme"]
