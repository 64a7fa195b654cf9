"""A client of a fleet: many streams on one connection, which it keeps to the end and accounts for one by one."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import grpc

from radixgate.v1 import inference_pb2, inference_pb2_grpc

_SERVICE: Final = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name

SERVICE_CONFIG: Final = {
    "loadBalancingConfig": [{"round_robin": {}}],
    # A gateway that drains says so. Without this, calls are tried there again, as often as anywhere.
    "healthCheckConfig": {"serviceName": _SERVICE},
    "methodConfig": [
        {
            "name": [{"service": _SERVICE}],
            # Where no gateway serves at the moment, calls wait for one, at most until their deadlines.
            "waitForReady": True,
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
}
"""What gRPC has clients set where servers come and go: take those in turn that are healthy, and try a call that has
brought nothing yet again.
"""

CALL_TIMEOUT_S: Final = 600.0
_MAX_MESSAGE_BYTES: Final = 64 << 20


@dataclass(slots=True)
class Outcome:
    """What came of one request."""

    token_ids: dict[int, list[int]] = field(default_factory=dict)  # by completion
    texts: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    usage: inference_pb2.Usage | None = None
    error: str = ""  # "" where it ended well
    code: grpc.StatusCode = grpc.StatusCode.OK
    simulated: bool = False  # some message said so
    sent_s: float = 0.0  # these three by time.monotonic
    first_s: float | None = None  # the first tokens came
    ended_s: float = 0.0
    trailers: dict[str, str] = field(default_factory=dict)

    @property
    def cached(self) -> int:
        assert self.usage is not None, self.error
        cached = self.usage.cached
        return cached.device + cached.host + cached.storage

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.token_ids.values()))

    def take(self, response: inference_pb2.GenerateResponse) -> None:
        if response.token_ids:
            self.first_s = self.first_s or time.monotonic()
            self.token_ids.setdefault(response.index, []).extend(response.token_ids)
        if response.logprobs:
            self.logprobs.setdefault(response.index, []).extend(entry.logprob for entry in response.logprobs)
        self.texts[response.index] = self.texts.get(response.index, "") + response.text
        self.simulated |= response.simulated
        if response.HasField("usage"):
            self.usage = response.usage


class FleetClient:
    """One tenant's client, over one or several gateways in turn."""

    def __init__(self, channel: grpc.aio.Channel, key: str) -> None:
        self._stub: inference_pb2_grpc.InferenceServiceAsyncStub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._metadata = (("authorization", f"Bearer {key}"),)

    async def ask(
        self,
        request: inference_pb2.GenerateRequest,
        on_message: "asyncio.Queue[Outcome] | None" = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Outcome:
        """Return what came of a request, errors included. Each message that has come is told to `on_message`."""
        outcome = Outcome(sent_s=time.monotonic())
        call = self._stub.Generate(request, metadata=self._metadata, timeout=timeout_s)
        try:
            async for response in call:
                outcome.take(response)
                if on_message is not None:
                    on_message.put_nowait(outcome)
            outcome.trailers = {key: str(value) for key, value in await call.trailing_metadata() or ()}
        except grpc.aio.AioRpcError as error:
            outcome.code, outcome.error = error.code(), f"{error.code().name}: {error.details()}"
        outcome.ended_s = time.monotonic()
        return outcome

    async def ask_all(self, requests: Sequence[inference_pb2.GenerateRequest]) -> list[Outcome]:
        """Return what came of requests that are sent at the same time."""
        return list(await asyncio.gather(*(self.ask(request) for request in requests)))


@asynccontextmanager
async def fleet_client(addresses: Sequence[str], key: str) -> AsyncIterator[FleetClient]:
    """Provide a client that takes healthy gateways in turn, and tries again what has brought nothing."""
    options: list[tuple[str, int | str]] = [
        ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    async with grpc.aio.insecure_channel(f"ipv4:{','.join(addresses)}", options=options) as channel:
        yield FleetClient(channel, key)


def tokens_request(
    token_ids: Sequence[int], max_new_tokens: int, *, seed: int | None = None, ends: bool = False
) -> inference_pb2.GenerateRequest:
    """Return a request for exactly so many tokens, or fewer if it `ends`: greedy, or with a seed."""
    sampling = inference_pb2.SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=not ends)
    if seed is None:
        sampling.temperature = 0.0
    else:
        sampling.seed = seed
    return inference_pb2.GenerateRequest(tokens=inference_pb2.TokenPrompt(token_ids=token_ids), sampling=sampling)
