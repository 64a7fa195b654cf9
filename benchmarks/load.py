"""Sends a list of requests through the gateway and times what comes back."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

import grpc

from benchmarks.workloads import Turn
from radixgate.v1 import inference_pb2, inference_pb2_grpc

MAX_MESSAGE_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Timing:
    """One answered request. Seconds on one clock; `arrivals` has one entry for each message with tokens."""

    tenant: str
    sent_s: float
    arrivals: tuple[tuple[float, int], ...]  # (time, tokens in the message)
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def ttft_s(self) -> float:
        return self.arrivals[0][0] - self.sent_s

    @property
    def inter_token_s(self) -> float | None:
        """Mean time between tokens after the first message, or None where everything came at once."""
        later = sum(tokens for _, tokens in self.arrivals[1:])
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / later if later else None


@dataclass(frozen=True, slots=True)
class LoadResult:
    wall_s: float
    timings: tuple[Timing, ...]

    def summary(self) -> dict[str, float]:
        """Return the figures of a run by the names used in every table, plot and JSON here."""
        inter_token = [t.inter_token_s for t in self.timings if t.inter_token_s is not None]
        prompt = sum(t.prompt_tokens for t in self.timings)
        cached = sum(t.cached_tokens for t in self.timings)
        completion = sum(t.completion_tokens for t in self.timings)
        return {
            "requests": len(self.timings),
            "wall_s": self.wall_s,
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "completion_tokens": completion,
            "hit_rate": cached / prompt,
            "output_tokens_per_s": completion / self.wall_s,
            "total_tokens_per_s": (prompt + completion) / self.wall_s,
            "ttft_mean_s": mean(t.ttft_s for t in self.timings),
            "ttft_p50_s": median(t.ttft_s for t in self.timings),
            "ttft_max_s": max(t.ttft_s for t in self.timings),
            "itl_mean_ms": 1000 * mean(inter_token) if inter_token else 0.0,
        }


async def send_all(target: str, keys: dict[str, str], turns: Sequence[Turn], concurrency: int) -> LoadResult:
    """Send `turns` in order, at most `concurrency` at a time, and wait for all of them."""
    slots = asyncio.Semaphore(concurrency)
    async with grpc.aio.insecure_channel(
        target, options=[("grpc.max_send_message_length", MAX_MESSAGE_BYTES)]
    ) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        started = time.monotonic()
        timings = await asyncio.gather(*(_send(stub, keys[turn.tenant], turn, slots) for turn in turns))
        return LoadResult(time.monotonic() - started, tuple(timings))


async def count_tokens(target: str, key: str, text: str) -> list[int]:
    """Return the token ids of `text` by the tokenizer of the stack under test."""
    async with grpc.aio.insecure_channel(target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        response = await stub.CountTokens(inference_pb2.CountTokensRequest(text=text), metadata=_credential(key))
        return list(response.token_ids)


async def _send(
    stub: "inference_pb2_grpc.InferenceServiceAsyncStub", key: str, turn: Turn, slots: asyncio.Semaphore
) -> Timing:
    request = inference_pb2.GenerateRequest(
        tokens=inference_pb2.TokenPrompt(token_ids=turn.token_ids),
        sampling=inference_pb2.SamplingParams(temperature=0, max_new_tokens=turn.max_new_tokens, ignore_eos=True),
    )
    async with slots:
        sent = time.monotonic()
        arrivals = []
        usage = inference_pb2.Usage()
        async for response in stub.Generate(request, metadata=_credential(key)):
            if response.token_ids:
                arrivals.append((time.monotonic(), len(response.token_ids)))
            if response.HasField("usage"):
                usage = response.usage
    cached = usage.cached.device + usage.cached.host + usage.cached.storage
    return Timing(turn.tenant, sent, tuple(arrivals), usage.prompt_tokens, cached, usage.completion_tokens)


def _credential(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)
