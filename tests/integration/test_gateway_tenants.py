"""What happens to a tenant holds on every gateway at once, for what arrives and for what runs."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.config import QuotaConfig
from gateway.identity.credentials import Credential
from radixgate.v1 import admin_pb2, inference_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, FOUR, MANY, Refusal, Stack, bearer, gateway
from tests.integration.quota_support import KillableRedis

ADMIN = bearer(ADMIN_TOKEN)
PERMISSION_DENIED, UNAUTHENTICATED = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
UNAVAILABLE, NOT_FOUND = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND
WITHIN_S = 1.0


@pytest.fixture
async def stacks(redis_url: str, worker: FakeWorker) -> AsyncIterator[list[Stack]]:
    """Two gateways that know the same keys."""
    async with (
        gateway(redis_url, [worker], tenants=["acme", "globex"]) as one,
        gateway(redis_url, [worker], tenants=[]) as two,
    ):
        two.keys.update(one.keys)
        yield [one, two]


@contextlib.asynccontextmanager
async def running(stack: Stack, worker: FakeWorker, tenant_id: str = "acme") -> AsyncIterator[asyncio.Task[Any]]:
    """Hold a stream open that a worker has and that gets no further."""
    worker.hold()
    before = worker.num_running
    stream = asyncio.create_task(stack.generate(tenant_id, **MANY))
    await worker.until(lambda: worker.num_running > before)
    yield stream
    stream.cancel()
    worker.go()


async def end_of(stream: "asyncio.Task[Any]", timeout_s: float = WITHIN_S) -> Refusal:
    async with asyncio.timeout(timeout_s):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await stream
    return Refusal.of(failure.value)


def suspend(stack: Stack, tenant_id: str = "acme") -> Awaitable[admin_pb2.SuspendTenantResponse]:
    return stack.admin.SuspendTenant(admin_pb2.SuspendTenantRequest(tenant_id=tenant_id), metadata=ADMIN)


def resume(stack: Stack, tenant_id: str = "acme") -> Awaitable[admin_pb2.ResumeTenantResponse]:
    return stack.admin.ResumeTenant(admin_pb2.ResumeTenantRequest(tenant_id=tenant_id), metadata=ADMIN)


def delete(stack: Stack, tenant_id: str = "acme") -> Awaitable[admin_pb2.DeleteTenantResponse]:
    return stack.admin.DeleteTenant(admin_pb2.DeleteTenantRequest(tenant_id=tenant_id), metadata=ADMIN)


def revoke(stack: Stack, tenant_id: str = "acme") -> Awaitable[admin_pb2.RevokeApiKeyResponse]:
    credential = Credential.parse(stack.keys[tenant_id])
    assert credential is not None
    return stack.admin.RevokeApiKey(admin_pb2.RevokeApiKeyRequest(key_id=credential.key_id), metadata=ADMIN)


async def test_a_suspended_tenants_streams_end_on_every_gateway_and_no_other_tenants(
    stacks: list[Stack], worker: FakeWorker
) -> None:
    one, two = stacks
    async with running(one, worker) as here, running(two, worker) as there, running(two, worker, "globex") as other:
        suspended_at = time.monotonic()
        assert (await suspend(one)).tenant.state == admin_pb2.TENANT_STATE_SUSPENDED
        for stream in (here, there):
            refusal = await end_of(stream)
            assert (refusal.code, refusal.reason) == (PERMISSION_DENIED, "TENANT_SUSPENDED")
        assert time.monotonic() - suspended_at < WITHIN_S
        await worker.until(lambda: worker.num_running == 1)
        assert not other.done()
    for stack in stacks:
        assert (await stack.refused(**FOUR)).reason == "TENANT_SUSPENDED"
        assert (await stack.generate("globex", **FOUR)).token_ids


async def test_a_resumed_tenant_goes_on_with_its_keys_and_its_cache(stacks: list[Stack], worker: FakeWorker) -> None:
    one, two = stacks
    await one.generate(**FOUR)
    await suspend(one)
    await one.refused(**FOUR)
    assert (await resume(two)).tenant.state == admin_pb2.TENANT_STATE_ACTIVE
    for stack in stacks:
        assert (await stack.generate(**FOUR)).usage.cached.device > 0
    async with running(two, worker) as ours, running(two, worker, "globex") as theirs:
        await suspend(one, "globex")
        await end_of(theirs)  # by now its gateway has followed both changes
        assert not ours.done()


async def test_a_deleted_tenants_streams_end_and_its_keys_are_unknown(stacks: list[Stack], worker: FakeWorker) -> None:
    one, two = stacks
    async with running(two, worker) as stream:
        answer = await delete(one)
        assert answer.deleted_api_keys == 1
        assert (await end_of(stream)).code in (PERMISSION_DENIED, UNAUTHENTICATED)
    for stack in stacks:
        assert (await stack.refused(**FOUR)).code is UNAUTHENTICATED
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await one.admin.GetTenant(admin_pb2.GetTenantRequest(tenant_id="acme"), metadata=ADMIN)
    assert failure.value.code() is NOT_FOUND


async def test_a_tenant_made_anew_finds_nothing_of_the_old_one(stacks: list[Stack]) -> None:
    one, two = stacks
    old_key = one.keys["acme"]
    await one.generate(**FOUR)
    assert (await one.generate(**FOUR)).usage.cached.device > 0
    await delete(two)
    await one.add_tenant("acme")
    assert (await one.generate(**FOUR)).usage.cached.device == 0
    two.keys["acme"] = old_key
    assert (await two.refused(**FOUR)).code is UNAUTHENTICATED
    usage = await one.admin.GetUsage(admin_pb2.GetUsageRequest(tenant_id="acme"), metadata=ADMIN)
    assert usage.total.requests <= 1


async def test_streams_of_a_revoked_key_end_and_those_of_the_tenants_other_keys_go_on(
    stacks: list[Stack], worker: FakeWorker
) -> None:
    one, two = stacks
    async with running(two, worker) as other:
        two.keys["acme"] = await one.add_key("acme")
        async with running(two, worker) as stream:
            await revoke(one)
            refusal = await end_of(stream)
            assert (refusal.code, refusal.reason) == (UNAUTHENTICATED, "CREDENTIAL_REFUSED")
        assert not other.done()


async def test_a_call_that_waits_for_the_first_token_ends_like_any_other(
    stacks: list[Stack], worker: FakeWorker
) -> None:
    worker.hold()
    calls = [stacks[1].call(**MANY) for _ in range(20)]
    reads = [asyncio.create_task(_read(call)) for call in calls]
    await worker.until(lambda: worker.num_running == 20)
    await suspend(stacks[0])
    assert {refusal.code for refusal in await asyncio.gather(*map(end_of, reads))} == {PERMISSION_DENIED}
    await worker.until(lambda: worker.num_running == 0)
    worker.go()


async def _read(call: "grpc.aio.UnaryStreamCall[Any, inference_pb2.GenerateResponse]") -> None:
    async for _ in call:
        pass


# -------------------------------------------------------------------------------------------------- while Redis is away


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[KillableRedis]:
    with KillableRedis(tmp_path) as server:
        yield server


async def test_known_tenants_go_on_without_redis_and_unknown_ones_are_told_to_come_again(
    own_redis: KillableRedis, worker: FakeWorker
) -> None:
    async with gateway(own_redis.url, [worker], tenants=["acme", "globex", "quiet"]) as stack:
        keys = stack.keys
        for tenant_id in ("acme", "globex"):
            await stack.generate(tenant_id, **FOUR)
        await suspend(stack, "globex")
        await stack.refused("globex", **FOUR)
        keys["wrong"] = keys["acme"][:-1] + ("0" if keys["acme"][-1] != "0" else "1")
        keys["nobody"] = str(Credential.generate())
        own_redis.kill()
        for _ in range(5):
            assert (await stack.generate(**FOUR)).usage.cached.device > 0
        assert (await stack.refused("globex", **FOUR)).reason == "TENANT_SUSPENDED"
        assert (await stack.refused("wrong", **FOUR)).code is UNAUTHENTICATED
        for tenant_id in ("quiet", "nobody"):
            refusal = await stack.refused(tenant_id, **FOUR)
            assert (refusal.code, refusal.reason) == (UNAVAILABLE, "IDENTITY_STORE_UNAVAILABLE"), tenant_id
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await resume(stack, "globex")
        assert failure.value.code() is UNAVAILABLE
        own_redis.start()
        await back(stack, "quiet")
        assert (await stack.refused("nobody", **FOUR)).code is UNAUTHENTICATED
        await resume(stack, "globex")
        assert (await stack.generate("globex", **FOUR)).token_ids


async def back(stack: Stack, tenant_id: str) -> None:
    """Wait until a tenant is served that the gateway does not know by itself."""
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await stack.generate(tenant_id, **FOUR)
                return


async def test_a_key_that_was_revoked_is_unknown_when_redis_is_lost(
    own_redis: KillableRedis, worker: FakeWorker
) -> None:
    async with (
        gateway(own_redis.url, [worker]) as one,
        gateway(own_redis.url, [worker], tenants=[]) as two,
    ):
        two.keys.update(one.keys)
        async with running(two, worker) as stream:
            await revoke(one)
            await end_of(stream)
        own_redis.kill()
        for stack in (one, two):
            assert await outcome_of(stack) is UNAVAILABLE
        own_redis.start()


async def test_what_is_known_gets_old(own_redis: KillableRedis, worker: FakeWorker) -> None:
    async with gateway(own_redis.url, [worker], quota=QuotaConfig(max_stale_s=1.0)) as stack:
        await stack.generate(**FOUR)
        own_redis.kill()
        killed_at = time.monotonic()
        async with asyncio.timeout(10):
            while (outcome := await outcome_of(stack)) is None:
                pass
        assert outcome is UNAVAILABLE
        assert time.monotonic() - killed_at > 0.5
        own_redis.start()


async def outcome_of(stack: Stack) -> grpc.StatusCode | None:
    """Return how a request of acme fails, if it does."""
    try:
        await stack.generate(**FOUR)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


async def test_streams_go_on_while_redis_is_away_and_suspensions_reach_them_when_it_is_back(
    own_redis: KillableRedis, worker: FakeWorker
) -> None:
    async with gateway(own_redis.url, [worker], tenants=["acme", "globex"]) as stack:
        async with running(stack, worker) as ours, running(stack, worker, "globex") as theirs:
            own_redis.kill()
            assert (await stack.refused("acme", tokens={"token_ids": []})).code is grpc.StatusCode.INVALID_ARGUMENT
            own_redis.start()
            async with asyncio.timeout(10):
                while True:
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        await suspend(stack)
                        break
            assert (await end_of(ours)).code is PERMISSION_DENIED
            assert not theirs.done()
