"""Limits of tenants at whole gateways: real sockets, a real Redis."""

import asyncio
import contextlib
import functools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf import field_mask_pb2
from redis.asyncio import Redis

from gateway.config import QuotaConfig
from radixgate.v1 import admin_pb2, inference_pb2
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import ADMIN_TOKEN, FOUR, IDS, MANY, Refusal, Stack, bearer, gateway, until
from tests.integration.quota_support import QuotaState, eventually, gateways, policies, quota_state

Route = Callable[[Stack], Awaitable[Any]]


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url, decode_responses=True) as made:
        yield made


# ------------------------------------------------------------------------------------------ every route x every limiter


async def generate(stack: Stack) -> None:
    assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)


async def count_tokens(stack: Stack) -> None:
    request = inference_pb2.CountTokensRequest(text="one two three four five six")
    await stack.inference.CountTokens(request, metadata=bearer(stack.keys["acme"]), timeout=30)


async def list_models(stack: Stack) -> None:
    await stack.inference.ListModels(inference_pb2.ListModelsRequest(), metadata=bearer(stack.keys["acme"]), timeout=30)


# What tenants can call. All of it counts as requests, and as running while it runs; the first two cost tokens.
ROUTES: dict[str, Route] = {"Generate": generate, "CountTokens": count_tokens, "ListModels": list_models}
COSTING = ("Generate", "CountTokens")
COUNTING_COSTS = QuotaConfig(counted_token_cost=1.0)


async def refusal_of(call: Awaitable[Any]) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    refusal = Refusal.of(failure.value)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    return refusal


def limit_of(refusal: Refusal) -> tuple[str, str]:
    return refusal.metadata["limit"], refusal.metadata["value"]


def test_no_method_of_tenants_is_left_out_here() -> None:
    service = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"]
    assert set(ROUTES) == {method.name for method in service.methods}


@pytest.mark.parametrize("route", ROUTES)
async def test_requests_per_minute_hold_for_every_route(redis_url: str, worker: FakeWorker, route: str) -> None:
    async with gateway(redis_url, [worker], policies=policies(requests_per_minute=2)) as stack:
        for _ in range(2):
            await ROUTES[route](stack)
        for _ in range(2):  # by Redis, and by what is remembered
            refusal = await refusal_of(ROUTES[route](stack))
            assert limit_of(refusal) == ("requests_per_minute", "2")
            assert refusal.retry_delay_s is not None
            assert 55 < refusal.retry_delay_s <= 61


@pytest.mark.parametrize("route", COSTING)
async def test_tokens_per_minute_hold_for_every_route_that_costs(
    redis_url: str, worker: FakeWorker, client: Redis, route: str
) -> None:
    async with gateway(redis_url, [worker], policies=policies(tokens_per_minute=20), quota=COUNTING_COSTS) as stack:
        async with asyncio.timeout(20):
            while True:
                before = await quota_state(client)
                try:
                    await ROUTES[route](stack)
                except grpc.aio.AioRpcError as error:
                    refusal = Refusal.of(error)
                    break
                await eventually(functools.partial(_changed, client, before))
        assert limit_of(refusal) == ("tokens_per_minute", "20")
        assert refusal.retry_delay_s is not None
        assert 0 < (await quota_state(client)).tokens <= 20


async def _changed(client: Redis, before: QuotaState) -> bool:
    return await quota_state(client) != before


@pytest.mark.parametrize("route", COSTING)
async def test_what_never_fits_is_told_so_by_every_route_that_costs(
    redis_url: str, worker: FakeWorker, route: str
) -> None:
    async with gateway(redis_url, [worker], policies=policies(tokens_per_minute=1), quota=COUNTING_COSTS) as stack:
        refusal = await refusal_of(ROUTES[route](stack))
        assert limit_of(refusal) == ("tokens_per_minute", "1")
        assert refusal.retry_delay_s is None
        assert "never" in refusal.message


@pytest.mark.parametrize("route", ROUTES)
async def test_places_hold_for_every_route(redis_url: str, worker: FakeWorker, route: str) -> None:
    async with gateway(redis_url, [worker], policies=policies(max_concurrent_requests=1)) as stack:
        worker.hold()
        runs = asyncio.ensure_future(stack.generate(**FOUR))
        await worker.until(lambda: worker.num_running == 1)
        refusal = await refusal_of(ROUTES[route](stack))
        assert limit_of(refusal) == ("max_concurrent_requests", "1")
        assert refusal.retry_delay_s is not None
        worker.go()
        await runs


@pytest.mark.parametrize("route", ROUTES)
async def test_every_route_may_wait_where_a_queue_is_allowed(
    redis_url: str, worker: FakeWorker, client: Redis, route: str
) -> None:
    limits = policies(max_concurrent_requests=1, max_queued_requests=1)
    async with gateway(redis_url, [worker], policies=limits) as stack:
        worker.hold()
        runs = asyncio.ensure_future(stack.generate(**FOUR))
        await worker.until(lambda: worker.num_running == 1)
        waits = asyncio.ensure_future(ROUTES[route](stack))
        await eventually(lambda: _waiting(client, 1))
        refusal = await refusal_of(ROUTES[route](stack))
        assert limit_of(refusal) == ("max_queued_requests", "1")
        assert refusal.retry_delay_s is not None
        worker.go()
        await asyncio.gather(runs, waits)
        await eventually(lambda: _at_rest(client))


async def _waiting(client: Redis, count: int) -> bool:
    return (await quota_state(client)).waiting == count


async def _at_rest(client: Redis) -> bool:
    state = await quota_state(client)
    return state.running == state.waiting == 0


# ------------------------------------------------------------------------------------------------------ exactly as many


async def outcomes(stacks: list[Stack], calls: int, **request: Any) -> Counter[str]:
    async def one(stack: Stack) -> str:
        try:
            await stack.generate(**request)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"

    return Counter(await asyncio.gather(*(one(stacks[i % len(stacks)]) for i in range(calls))))


async def test_of_500_requests_at_a_time_exactly_as_many_as_the_limit_are_admitted(
    redis_url: str, worker: FakeWorker, client: Redis
) -> None:
    async with gateway(redis_url, [worker], policies=policies(requests_per_minute=10)) as stack:
        assert await outcomes([stack], 500, **FOUR) == {"OK": 10, "RESOURCE_EXHAUSTED": 490}
        assert len(worker.submits) == 10
        assert (await quota_state(client)).requests == 10


async def test_of_500_requests_at_a_time_no_more_run_than_the_limit(
    redis_url: str, worker: FakeWorker, client: Redis
) -> None:
    async with gateway(redis_url, [worker], policies=policies(max_concurrent_requests=10)) as stack:
        worker.hold()
        calls = asyncio.ensure_future(outcomes([stack], 500, **FOUR))
        await until(lambda: sum(code == "RESOURCE_EXHAUSTED" for _, code, _ in stack.observer.finished) == 490, 60)
        assert worker.num_running == 10
        assert (await quota_state(client)).running == 10
        worker.go()
        assert await calls == {"OK": 10, "RESOURCE_EXHAUSTED": 490}
        await eventually(lambda: _at_rest(client))


async def test_three_gateways_keep_one_limit(redis_url: str, worker: FakeWorker, client: Redis) -> None:
    async with gateways(3, redis_url, [worker], policies=policies(tokens_per_minute=300)) as stacks:
        chance = random.Random(7)
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, (await quota_state(client)).tokens)
                await asyncio.sleep(0.002)

        ends: Counter[str] = Counter()

        async def one(i: int) -> None:
            new, cut = chance.randint(1, 30), chance.random() < 0.2
            await asyncio.sleep(chance.random())
            call = stacks[i % 3].call(tokens={"token_ids": IDS}, sampling={"max_new_tokens": new})
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                async for _ in call:
                    if cut:
                        call.cancel()
            ends[(await call.code()).name] += 1

        watcher = asyncio.ensure_future(watch())
        await asyncio.gather(*(one(i) for i in range(200)))
        watcher.cancel()
        assert set(ends) <= {"OK", "CANCELLED", "RESOURCE_EXHAUSTED"}
        assert min(ends["OK"], ends["RESOURCE_EXHAUSTED"]) > 10
        # All of it within a minute, so that its sum is the window's: reserved at most, and used in the end.
        assert 200 < most <= 300
        usage = [prompt_and_new(submit) for submit in worker.submits]
        assert sum(usage) >= (await quota_state(client)).tokens


def prompt_and_new(submit: Any) -> int:
    return len(IDS) + int(submit.sampling.max_new_tokens)


async def test_three_gateways_share_places_and_a_queue(redis_url: str, worker: FakeWorker, client: Redis) -> None:
    limits = policies(max_concurrent_requests=4, max_queued_requests=20)
    async with gateways(3, redis_url, [worker], policies=limits) as stacks:
        worker.hold()
        calls = asyncio.ensure_future(outcomes(stacks, 40, **FOUR))
        refused = 40 - 4 - 20
        await until(lambda: sum(len(stack.observer.finished) - 2 * (stack is stacks[0]) for stack in stacks) == refused)
        assert (await quota_state(client)).waiting == 20
        assert worker.num_running == 4
        most = 4
        worker.go()
        while not calls.done():
            most = max(most, worker.num_running)
            await asyncio.sleep(0)
        assert most == 4
        assert await calls == {"OK": 24, "RESOURCE_EXHAUSTED": refused}
        await eventually(lambda: _at_rest(client))


async def test_a_tenant_without_limits_costs_redis_nothing_before_its_answer(
    redis_url: str, worker: FakeWorker, client: Redis
) -> None:
    async with gateway(
        redis_url, [worker], policies=policies(requests_per_minute=1), tenants=("acme", "free")
    ) as stack:
        await stack.generate("free", **FOUR)
        assert await quota_state(client, "free") == QuotaState(0, 0, 0, 0)
        assert not await client.keys("*quota:free*")


# -------------------------------------------------------------------------------------------------------------- waiting


async def test_who_waits_is_served_by_arrival(redis_url: str, worker: FakeWorker, client: Redis) -> None:
    limits = policies(max_concurrent_requests=1, max_queued_requests=5)
    async with gateway(redis_url, [worker], policies=limits) as stack:
        worker.hold()
        calls = []
        for i in range(5):
            calls.append(asyncio.ensure_future(stack.generate(request_id=f"call-{i}", **FOUR)))
            if i == 0:
                await worker.until(lambda: worker.num_running == 1)
            else:
                await eventually(functools.partial(_waiting, client, i))
        worker.go()
        await asyncio.gather(*calls)
        assert [submit.request_id for submit in worker.submits] == [f"call-{i}" for i in range(5)]


async def test_who_has_waited_too_long_is_told_which_limit_it_was(
    redis_url: str, worker: FakeWorker, client: Redis
) -> None:
    limits, quota = policies(max_concurrent_requests=1, max_queued_requests=5), QuotaConfig(max_queue_s=0.2)
    async with gateway(redis_url, [worker], policies=limits, quota=quota) as stack:
        worker.hold()
        runs = asyncio.ensure_future(stack.generate(**FOUR))
        await worker.until(lambda: worker.num_running == 1)
        assert limit_of(await refusal_of(stack.generate(**FOUR))) == ("max_concurrent_requests", "1")
        await eventually(lambda: _waiting(client, 0))
        worker.go()
        await runs


@pytest.mark.parametrize("end", ["cancel", "deadline"])
async def test_who_gives_up_leaves_its_place_in_the_line_at_once(
    redis_url: str, worker: FakeWorker, client: Redis, end: str
) -> None:
    limits = policies(max_concurrent_requests=1, max_queued_requests=1)
    async with gateway(redis_url, [worker], policies=limits) as stack:
        worker.hold()
        runs = asyncio.ensure_future(stack.generate(**FOUR))
        await worker.until(lambda: worker.num_running == 1)
        call = stack.call(timeout=0.5 if end == "deadline" else 30.0, **FOUR)
        await eventually(lambda: _waiting(client, 1))
        if end == "cancel":
            call.cancel()
        assert await call.code() is (
            grpc.StatusCode.CANCELLED if end == "cancel" else grpc.StatusCode.DEADLINE_EXCEEDED
        )
        await eventually(lambda: _waiting(client, 0), 2)
        worker.go()
        await runs
        await stack.generate(**FOUR)


async def test_a_place_that_another_gateway_frees_is_found(redis_url: str, worker: FakeWorker, client: Redis) -> None:
    limits = policies(max_concurrent_requests=1, max_queued_requests=1)
    async with gateways(2, redis_url, [worker], policies=limits) as (one, other):
        worker.hold()
        runs = one.call(**MANY)
        await worker.until(lambda: worker.num_running == 1)
        waits = asyncio.ensure_future(other.generate(**FOUR))
        await eventually(lambda: _waiting(client, 1))
        runs.cancel()
        worker.go()
        async with asyncio.timeout(3):
            assert (await waits).token_ids == completion(IDS, 4)


# ------------------------------------------------------------------------------------------------- policies that change


async def test_a_limit_that_was_raised_lets_in_who_was_refused_before(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as stack:
        await set_requests_per_minute(stack, 1)
        await eventually(lambda: _is_refused(stack, "1"))
        await set_requests_per_minute(stack, 50)
        await eventually(lambda: _is_served(stack))


async def test_who_waits_gets_in_when_an_operator_raises_the_limit(redis_url: str, worker: FakeWorker) -> None:
    limits = policies(max_concurrent_requests=1, max_queued_requests=5)
    async with gateways(2, redis_url, [worker], policies=limits) as (first, second):
        worker.hold()
        calls = [asyncio.ensure_future(stack.generate(**FOUR)) for stack in (first, second)]
        await worker.until(lambda: worker.num_running == 1)
        request = admin_pb2.UpdateTenantRequest(
            tenant=admin_pb2.Tenant(tenant_id="acme", policy=admin_pb2.TenantPolicy(max_concurrent_requests=2)),
            update_mask=field_mask_pb2.FieldMask(paths=["policy.max_concurrent_requests"]),
        )
        await first.admin.UpdateTenant(request, metadata=bearer(ADMIN_TOKEN))
        await worker.until(lambda: worker.num_running == 2)
        worker.go()
        await asyncio.gather(*calls)


async def set_requests_per_minute(stack: Stack, limit: int) -> None:
    request = admin_pb2.UpdateTenantRequest(
        tenant=admin_pb2.Tenant(tenant_id="acme", policy=admin_pb2.TenantPolicy(requests_per_minute=limit)),
        update_mask=field_mask_pb2.FieldMask(paths=["policy.requests_per_minute"]),
    )
    await stack.admin.UpdateTenant(request, metadata=bearer(ADMIN_TOKEN))


async def _is_refused(stack: Stack, value: str) -> bool:
    try:
        await stack.generate(**FOUR)
    except grpc.aio.AioRpcError as error:
        return limit_of(Refusal.of(error)) == ("requests_per_minute", value)
    return False


async def _is_served(stack: Stack) -> bool:
    try:
        await stack.generate(**FOUR)
    except grpc.aio.AioRpcError:
        return False
    return True
