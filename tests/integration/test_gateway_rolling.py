"""A gateway ends while clients call: what it has accepted comes to its end, everything else may be tried again."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack

import grpc
import pytest

from gateway.app import GatewayApp
from radixgate.v1 import inference_pb2, inference_pb2_grpc
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import IDS, Stack, bearer, config_for, gateway, until

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
COUNT = inference_pb2.CountTokensRequest(tokens=inference_pb2.TokenPrompt(token_ids=IDS))
RETRIES = {
    "loadBalancingConfig": [{"round_robin": {}}],
    # A gateway that drains says so: without this calls would go on to be tried there, too.
    "healthCheckConfig": {"serviceName": "radixgate.v1.InferenceService"},
    "methodConfig": [
        {
            "name": [{"service": "radixgate.v1.InferenceService"}],
            "retryPolicy": {
                "maxAttempts": 5, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
}  # fmt: skip


class Callers:
    """Call as fast as they are answered, from several tasks over one channel, until they are told to stop."""

    def __init__(self, stack: Stack, channel: grpc.aio.Channel) -> None:
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._metadata = bearer(stack.keys["acme"])
        self._stopped = False
        self.codes: Counter[grpc.StatusCode] = Counter()

    async def call(self, num_calls: int = 1_000_000) -> None:
        for _ in range(num_calls):
            if self._stopped:
                return
            try:
                await self._stub.CountTokens(COUNT, metadata=self._metadata, timeout=60)
            except grpc.aio.AioRpcError as error:
                self.codes[error.code()] += 1
            else:
                self.codes[grpc.StatusCode.OK] += 1

    def stop(self) -> None:
        self._stopped = True


def channel_to(*addresses: str, retries: bool) -> grpc.aio.Channel:
    options: list[tuple[str, int | str]] = [("grpc.use_local_subchannel_pool", 1)]
    options += [("grpc.service_config", json.dumps(RETRIES))] if retries else [("grpc.enable_retries", 0)]
    return grpc.aio.insecure_channel(f"ipv4:{','.join(addresses)}", options=options)


async def test_whoever_calls_a_gateway_that_ends_is_told_to_try_again(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as stack, channel_to(stack.app.address, retries=False) as channel:
        callers = Callers(stack, channel)
        tasks = [asyncio.create_task(callers.call()) for _ in range(20)]
        await until(lambda: callers.codes[grpc.StatusCode.OK] >= 100)
        await stack.app.stop()
        callers.stop()
        await asyncio.gather(*tasks)
        assert callers.codes.keys() == {grpc.StatusCode.OK, UNAVAILABLE}


@pytest.mark.parametrize("num_streams", [0, 8])
async def test_gateways_end_one_by_one_and_no_client_that_tries_again_notices(
    redis_url: str, worker: FakeWorker, num_streams: int
) -> None:
    async with AsyncExitStack() as entered:
        stack = await entered.enter_async_context(gateway(redis_url, [worker]))
        others = [
            await entered.enter_async_context(GatewayApp(config_for(redis_url, [worker.address]))) for _ in range(2)
        ]
        await until(lambda: all(app.ready for app in others))
        addresses = [app.address for app in (stack.app, *others)]
        channel = await entered.enter_async_context(channel_to(*addresses, retries=True))
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        async def stream() -> list[int]:
            request = inference_pb2.GenerateRequest(
                tokens=inference_pb2.TokenPrompt(token_ids=IDS),
                sampling=inference_pb2.SamplingParams(max_new_tokens=300),
            )
            call = stub.Generate(request, metadata=bearer(stack.keys["acme"]), timeout=60)
            return [token_id async for message in call for token_id in message.token_ids]

        callers = Callers(stack, channel)
        tasks = [asyncio.create_task(callers.call()) for _ in range(10)]
        worker.hold()
        streams = [asyncio.create_task(stream()) for _ in range(num_streams)]
        await until(lambda: worker.num_running == num_streams)
        for app in (stack.app, others[0]):
            stopping = asyncio.create_task(app.stop())
            before = callers.codes.total()
            await until(lambda before=before: callers.codes.total() >= before + 100)  # type: ignore[misc]
            worker.go()
            await stopping
        callers.stop()
        await asyncio.gather(*tasks)
        assert callers.codes.keys() == {grpc.StatusCode.OK}
        assert await asyncio.gather(*streams) == [completion(IDS, 300)] * num_streams
