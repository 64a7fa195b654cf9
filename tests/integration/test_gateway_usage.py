"""What tenants have used, and that every end of a request gives back what it had reserved."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from redis.asyncio import Redis

from gateway.config import QuotaConfig
from gateway.quota import keys
from radixgate.v1 import admin_pb2, inference_pb2, worker_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, FOUR, IDS, MANY, Refusal, Stack, bearer, gateway
from tests.integration.quota_support import QuotaState, eventually, gateways, policies, quota_state, usage_of

LIMITED = policies(
    requests_per_minute=1000, tokens_per_minute=100_000, max_concurrent_requests=50, max_queued_requests=50
)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url, decode_responses=True) as made:
        yield made


async def settled(client: Redis, requests: int, tokens: int) -> None:
    """Wait until nothing runs and the windows have exactly this in them."""
    wanted = QuotaState(requests, tokens, 0, 0)

    async def is_so() -> bool:
        return await quota_state(client) == wanted

    try:
        await eventually(is_so)
    except TimeoutError:
        assert await quota_state(client) == wanted


# -------------------------------------------------------------------------------------------------- every way to an end


async def begun(stack: Stack, worker: FakeWorker, **request: Any) -> Any:
    """Begin a call and return it when its client has two tokens of it."""
    worker.hold()
    call = stack.call(**{**MANY, **request})
    await worker.until(lambda: worker.num_running == 1)
    worker.step(2)
    received = 0
    while received < 2:
        message = await call.read()
        assert isinstance(message, inference_pb2.GenerateResponse)
        received += len(message.token_ids)
    return call


async def cancelled(stack: Stack, worker: FakeWorker) -> grpc.StatusCode:
    call = await begun(stack, worker)
    call.cancel()
    return grpc.StatusCode.CANCELLED


async def out_of_time(stack: Stack, worker: FakeWorker) -> grpc.StatusCode:
    call = await begun(stack, worker, timeout=1.0)
    code: grpc.StatusCode = await call.code()
    return code


async def without_its_worker(stack: Stack, worker: FakeWorker) -> grpc.StatusCode:
    call = await begun(stack, worker)
    await worker.kill()
    code: grpc.StatusCode = await call.code()
    return code


async def failed_by_its_worker(stack: Stack, worker: FakeWorker) -> grpc.StatusCode:
    call = await begun(stack, worker)
    worker.end_all(worker_pb2.SEQUENCE_ERROR_CODE_INTERNAL)
    code: grpc.StatusCode = await call.code()
    return code


async def with_its_adapter_gone(stack: Stack, worker: FakeWorker) -> grpc.StatusCode:
    call = await begun(stack, worker)
    worker.end_all(worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND, "adapter")
    code: grpc.StatusCode = await call.code()
    return code


async def suspended(stack: Stack, worker: FakeWorker) -> grpc.StatusCode:
    call = await begun(stack, worker)
    await stack.admin.SuspendTenant(admin_pb2.SuspendTenantRequest(tenant_id="acme"), metadata=bearer(ADMIN_TOKEN))
    code: grpc.StatusCode = await call.code()
    return code


ENDS: list[tuple[Callable[[Stack, FakeWorker], Awaitable[grpc.StatusCode]], grpc.StatusCode]] = [
    (cancelled, grpc.StatusCode.CANCELLED),
    (out_of_time, grpc.StatusCode.DEADLINE_EXCEEDED),
    (without_its_worker, grpc.StatusCode.UNAVAILABLE),
    (failed_by_its_worker, grpc.StatusCode.UNAVAILABLE),
    (with_its_adapter_gone, grpc.StatusCode.UNAVAILABLE),
    (suspended, grpc.StatusCode.PERMISSION_DENIED),
]


@pytest.mark.parametrize(("end", "code"), ENDS, ids=[end.__name__ for end, _ in ENDS])
async def test_what_was_computed_stays_charged_and_the_rest_is_given_back(
    redis_url: str,
    client: Redis,
    worker: FakeWorker,
    end: Callable[[Stack, FakeWorker], Awaitable[grpc.StatusCode]],
    code: grpc.StatusCode,
) -> None:
    async with gateway(redis_url, [worker], policies=LIMITED) as stack:
        assert await end(stack, worker) is code
        await settled(client, 1, len(IDS) + 2)
        assert await usage_of(stack) == admin_pb2.UsageCounts(requests=1, prompt_tokens=len(IDS), completion_tokens=2)


async def test_a_request_that_no_worker_admits_costs_no_tokens(
    redis_url: str, client: Redis, worker: FakeWorker
) -> None:
    async with gateway(redis_url, [worker], policies=LIMITED) as stack:
        worker.failure = worker_pb2.SequenceError(code=worker_pb2.SEQUENCE_ERROR_CODE_OVERLOADED, message="full")
        assert (await stack.refused(**FOUR)).code is not grpc.StatusCode.OK
        await settled(client, 1, 0)
        assert await usage_of(stack) == admin_pb2.UsageCounts()


async def test_a_request_that_begins_again_with_another_adapter_is_one_request(
    redis_url: str, client: Redis, worker: FakeWorker
) -> None:
    worker.tell_adapters(worker_pb2.Adapter(name="poet", revision="r1"))
    async with gateway(redis_url, [worker], policies=LIMITED) as stack:
        worker.tells_late = True
        worker.adapters = [worker_pb2.Adapter(name="poet", revision="r2")]
        await stack.generate(adapter="poet", **FOUR)
        assert len(worker.submits) == 2
        await settled(client, 1, len(IDS) + 4)
        assert await usage_of(stack) == admin_pb2.UsageCounts(requests=1, prompt_tokens=len(IDS), completion_tokens=4)


async def test_a_request_that_is_refused_reserves_nothing(redis_url: str, client: Redis, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], policies=LIMITED) as stack:
        await stack.refused(tokens={"token_ids": IDS}, sampling={"max_new_tokens": 10**6})
        await stack.refused(adapter="none", **FOUR)
        await settled(client, 0, 0)


async def test_cached_tokens_cost_what_is_configured(redis_url: str, client: Redis, worker: FakeWorker) -> None:
    quota = QuotaConfig(cached_token_cost=0.25)
    async with gateway(redis_url, [worker], policies=LIMITED, quota=quota) as stack:
        for _ in range(2):
            await stack.generate(**FOUR)
        # Of the second prompt two of three tokens are cached: 0.5, and 1 computed, and 4 completed, rounded up.
        await settled(client, 2, (3 + 4) + 6)
        assert await usage_of(stack) == admin_pb2.UsageCounts(
            requests=2, prompt_tokens=6, completion_tokens=8, cached_device_tokens=2
        )


async def test_all_that_is_reserved_is_what_several_completions_can_use(
    redis_url: str, client: Redis, worker: FakeWorker
) -> None:
    async with gateway(redis_url, [worker], policies=LIMITED) as stack:
        worker.hold()
        call = asyncio.ensure_future(stack.generate(tokens={"token_ids": IDS}, sampling={"max_new_tokens": 10, "n": 3}))
        await worker.until(lambda: worker.num_running == 3)
        state = await quota_state(client)
        assert (state.tokens, state.running) == (len(IDS) + 30, 1)
        worker.go()
        await call
        await settled(client, 1, len(IDS) + 30)


async def test_any_mix_of_ends_leaves_nothing_behind(redis_url: str, client: Redis, worker: FakeWorker) -> None:
    async with gateways(2, redis_url, [worker], policies=LIMITED) as stacks:

        async def one(i: int) -> tuple[int, int]:
            """Return the tokens that came, and whether all of them did."""
            call = stacks[i % 2].call(timeout=0.05 if i % 7 == 3 else 30.0, **(MANY if i % 3 else FOUR))
            received = 0
            try:
                async for message in call:
                    received += len(message.token_ids)
                    if i % 5 == 4:
                        call.cancel()
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                return received, 0
            return received, 1

        results = await asyncio.gather(*(one(i) for i in range(150)))
        await eventually(lambda: _at_rest(client))
        usage, state = await usage_of(stacks[0]), await quota_state(client)
        assert usage.completion_tokens >= sum(received for received, _ in results)
        assert 0 < sum(whole for _, whole in results) < 150
        assert state.tokens == usage.prompt_tokens + usage.completion_tokens
        assert usage.prompt_tokens == usage.requests * len(IDS)


async def _at_rest(client: Redis) -> bool:
    state = await quota_state(client)
    return state.running == state.waiting == 0


# ------------------------------------------------------------------------------------------------------------ GetUsage


async def get_usage(stack: Stack, **request: Any) -> admin_pb2.GetUsageResponse:
    message = admin_pb2.GetUsageRequest(**{"tenant_id": "acme", **request})
    answer: admin_pb2.GetUsageResponse = await stack.admin.GetUsage(message, metadata=bearer(ADMIN_TOKEN))
    return answer


async def refusal_of(call: Awaitable[Any]) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return Refusal.of(failure.value)


async def test_usage_is_told_by_day_model_and_adapter(redis_url: str, client: Redis, worker: FakeWorker) -> None:
    worker.tell_adapters(worker_pb2.Adapter(name="poet", revision="r1"))
    async with gateway(redis_url, [worker], tenants=("acme", "globex")) as stack:
        today = datetime.now(UTC).date()
        for adapter in ("", "poet", "poet"):
            await stack.generate(adapter=adapter, **FOUR)
        await stack.generate("globex", **FOUR)
        before = (today - timedelta(days=2)).strftime("%Y%m%d")
        await client.hset(keys.usage("acme", before), '["old \\"model\\"", "", "requests"]', "7")

        async def is_written() -> bool:
            return (await get_usage(stack)).total.requests == 3

        await eventually(is_written)
        rows = [(row.day, row.model, row.adapter, row.counts.requests) for row in (await get_usage(stack)).rows]
        assert rows == [(str(today), "tiny", "", 1), (str(today), "tiny", "poet", 2)]
        earlier = await get_usage(stack, first_day=str(today - timedelta(days=365)), last_day=str(today))
        assert (earlier.rows[0].day, earlier.rows[0].model) == (str(today - timedelta(days=2)), 'old "model"')
        assert earlier.total.requests == 10
        assert earlier.total.completion_tokens == 12
        assert not (await get_usage(stack, first_day="2020-01-01", last_day="2020-01-31")).rows
        assert 0 < await client.ttl(keys.usage("acme", today.strftime("%Y%m%d"))) <= 400 * 86_400


@pytest.mark.parametrize(
    ("request_fields", "field", "told"),
    [
        ({"first_day": "2026-13-01"}, "first_day", "YYYY-MM-DD"),
        ({"last_day": "yesterday"}, "last_day", "YYYY-MM-DD"),
        ({"last_day": "20261130"}, "last_day", "YYYY-MM-DD"),
        ({"first_day": "2026-11-30", "last_day": "2026-11-29"}, "first_day", "behind"),
        ({"first_day": "2024-01-01", "last_day": "2025-01-01"}, "first_day", "367 days; at most 366"),
        ({"first_day": "0001-01-01", "last_day": "9999-12-31"}, "first_day", "at most 366"),
    ],
)
async def test_days_that_are_none_are_refused_by_field(
    redis_url: str, worker: FakeWorker, request_fields: dict[str, str], field: str, told: str
) -> None:
    async with gateway(redis_url, [worker]) as stack:
        refusal = await refusal_of(get_usage(stack, **request_fields))
        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
        assert told in refusal.fields[field]


async def test_usage_of_a_tenant_that_does_not_exist_is_not_found(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as stack:
        refusal = await refusal_of(get_usage(stack, tenant_id="nobody"))
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "TENANT_NOT_FOUND")


async def test_a_tenant_made_anew_finds_no_usage_and_no_limits_of_the_one_before(
    redis_url: str, client: Redis, worker: FakeWorker
) -> None:
    async with gateway(redis_url, [worker], policies=policies(requests_per_minute=2)) as stack:
        for _ in range(2):
            await stack.generate(**FOUR)
        await settled(client, 2, 0)
        await stack.admin.DeleteTenant(admin_pb2.DeleteTenantRequest(tenant_id="acme"), metadata=bearer(ADMIN_TOKEN))
        assert not await client.keys("*quota:acme*")
        await stack.add_tenant("acme")
        assert not (await get_usage(stack)).rows
        await stack.generate(**FOUR)

        async def is_written() -> bool:
            return (await get_usage(stack)).total.requests == 1

        await eventually(is_written)
