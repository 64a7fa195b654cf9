"""How many calls there may be at a time, and whom those bounds do not touch."""

import asyncio
import contextlib
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gateway.config import GatewayLimits
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import FOUR, IDS, MANY, Refusal, Stack, gateway, health, health_stub

SERVING = health_pb2.HealthCheckResponse.SERVING


async def test_open_streams_have_a_bound_of_their_own_and_lock_nobody_out(redis_url: str, worker: FakeWorker) -> None:
    limits = GatewayLimits(max_open_streams=3, max_concurrent_rpcs=2)
    async with gateway(redis_url, [worker], limits=limits) as stack:
        watches = [await watched(stack) for _ in range(2)]
        make: Any = reflection_pb2_grpc.ServerReflectionStub
        described = make(stack.channel).ServerReflectionInfo()
        await described.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        await described.read()
        for refused in (watched(stack), reflected(stack)):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await refused
            refusal = Refusal.of(failure.value)
            assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_OPEN_STREAMS")
            assert "3 streams" in refusal.message
        assert await health(stack, "") == SERVING
        assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)
        for stream in (*watches, described):
            stream.cancel()
        await asyncio.wait_for(until_watched(stack), 10)


async def test_calls_over_the_bound_are_refused_and_health_is_not(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], limits=GatewayLimits(max_concurrent_rpcs=2)) as stack:
        worker.hold()
        running = [stack.call(**MANY) for _ in range(2)]
        await worker.until(lambda: worker.num_running == 2)
        refusal = await stack.refused(**FOUR)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS")
        assert await health(stack, "") == SERVING
        (await watched(stack)).cancel()
        worker.go()
        assert [sum([len(message.token_ids) async for message in call]) for call in running] == [400, 400]
        assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)


async def test_a_connection_has_a_bound_and_others_are_served(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], limits=GatewayLimits(max_streams_per_connection=2)) as stack:
        watches = [await watched(stack) for _ in range(2)]
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await health_stub(stack).Check(health_pb2.HealthCheckRequest(), timeout=0.2)
        assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        own = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(stack.app.address, options=own) as channel:
            assert await health(Stack(stack.app, stack.observer, channel), "") == SERVING
        watches[0].cancel()
        assert await health(stack, "") == SERVING


async def watched(stack: Stack) -> Any:
    """Begin a health watch and return it once it runs. Raises AioRpcError."""
    watch = health_stub(stack).Watch(health_pb2.HealthCheckRequest(service=""))
    assert (await watch.read()).status == SERVING
    return watch


async def until_watched(stack: Stack) -> None:
    while True:
        with contextlib.suppress(grpc.aio.AioRpcError):
            (await watched(stack)).cancel()
            return
        await asyncio.sleep(0.005)


async def reflected(stack: Stack) -> None:
    make: Any = reflection_pb2_grpc.ServerReflectionStub
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async for _ in make(stack.channel).ServerReflectionInfo(iter([request])):
        pass
