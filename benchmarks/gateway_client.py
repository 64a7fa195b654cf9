"""Asks our gateway, over gRPC, as one client with a key of each tenant."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from benchmarks.load import Arrival, Timing
from benchmarks.workloads import Turn, document
from radixgate.v1 import inference_pb2, inference_pb2_grpc

MAX_MESSAGE_BYTES = 16 * 2**20


class GatewayClient:
    """One channel to a gateway; `keys` by tenant."""

    def __init__(self, channel: grpc.aio.Channel, keys: dict[str, str]) -> None:
        self._stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._metadata = {tenant: (("authorization", f"Bearer {key}"),) for tenant, key in keys.items()}

    async def answer(self, turn: Turn) -> Timing:
        request = inference_pb2.GenerateRequest(
            tokens=inference_pb2.TokenPrompt(token_ids=turn.token_ids),
            adapter=turn.adapter,
            scope=turn.scope,
            sampling=inference_pb2.SamplingParams(
                temperature=turn.temperature,
                seed=turn.seed,
                max_new_tokens=turn.max_new_tokens,
                ignore_eos=True,
            ),
        )
        arrivals = []
        token_ids: list[int] = []
        usage = inference_pb2.Usage()
        sent = time.monotonic()
        async for response in self._stub.Generate(request, metadata=self._metadata[turn.tenant]):
            if response.token_ids:
                arrivals.append(Arrival(time.monotonic(), len(response.token_ids)))
                token_ids += response.token_ids
            if response.HasField("usage"):
                usage = response.usage
        cached = usage.cached.device + usage.cached.host + usage.cached.storage
        return Timing(sent, tuple(arrivals), tuple(token_ids), usage.prompt_tokens, cached)

    async def token_ids(self, text: str, tenant: str) -> list[int]:
        """Return the token ids of `text` by the tokenizer of the stack under test."""
        request = inference_pb2.CountTokensRequest(text=text)
        response = await self._stub.CountTokens(request, metadata=self._metadata[tenant])
        return list(response.token_ids)


async def document_token_ids(target: str, keys: dict[str, str]) -> list[int]:
    """Return the token ids of the text that prompts are cut from."""
    async with gateway_client(target, keys) as client:
        return await client.token_ids(document(), next(iter(keys)))


@asynccontextmanager
async def gateway_client(target: str, keys: dict[str, str]) -> AsyncIterator[GatewayClient]:
    """Connect to the gateway at `target` (host:port, no TLS)."""
    options = [("grpc.max_send_message_length", MAX_MESSAGE_BYTES)]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        yield GatewayClient(channel, keys)
