"""Clients of a gateway, a proxy or a worker: streams that run side by side, and single requests one after the other.

    python -m benchmarks.gateway_load streams --target HOST:PORT [--key KEY] --streams 256 --tokens 500
    python -m benchmarks.gateway_load first   --target HOST:PORT [--key KEY] --requests 200

Prints JSON. A process of its own, so that its work is not counted as that of what it asks.
"""

import argparse
import asyncio
import json
import time
from typing import Any

import grpc

from radixgate.v1 import inference_pb2

PROMPT_TOKENS = 64


class Client:
    def __init__(self, channel: grpc.aio.Channel, key: str) -> None:
        # Bytes as they are: what is in a message is looked at where it matters only.
        self._generate: Any = channel.unary_stream(
            "/radixgate.v1.InferenceService/Generate",
            request_serializer=lambda message: message.SerializeToString(),
        )
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()

    def call(self, tokens: int, number: int) -> Any:
        prompt = [(number * 31 + i) % 999 for i in range(PROMPT_TOKENS)]
        request = inference_pb2.GenerateRequest(
            tokens=inference_pb2.TokenPrompt(token_ids=prompt),
            sampling=inference_pb2.SamplingParams(max_new_tokens=tokens, ignore_eos=True),
        )
        return self._generate(request, metadata=self._metadata)

    async def stream(self, tokens: int, number: int) -> dict[str, float]:
        """Read one answer to its end; return its times, in seconds of `time.monotonic`, and its messages."""
        sent = time.monotonic()
        first = last = 0.0
        longest = 0.0
        messages: list[bytes] = []
        async for message in self.call(tokens, number):
            now = time.monotonic()
            longest = max(longest, now - last) if messages else 0.0
            first, last = first or now, now
            messages.append(message)
        # Read when the time has been taken: a proxy that loses tokens is no faster for it.
        read = [inference_pb2.GenerateResponse.FromString(message) for message in messages]
        if (came := sum(len(each.token_ids) for each in read)) != tokens:
            raise RuntimeError(f"{came} tokens came of {tokens}")
        return {"first": first - sent, "begun": first, "ended": last, "longest_gap": longest, "messages": len(messages)}

    async def first_token_s(self, number: int) -> float:
        sent = time.monotonic()
        first = 0.0
        async for _ in self.call(2, number):
            first = first or time.monotonic()
        return first - sent


async def _streams(target: str, key: str, streams: int, tokens: int) -> dict[str, Any]:
    async with grpc.aio.insecure_channel(target) as channel:
        client = Client(channel, key)
        await client.first_token_s(0)
        done = await asyncio.gather(*(client.stream(tokens, i) for i in range(streams)))
    return {
        "begun": max(each["begun"] for each in done),
        "ended": min(each["ended"] for each in done),
        "seconds": max(each["ended"] for each in done) - min(each["begun"] for each in done),
        "messages": sum(each["messages"] for each in done),
        "longest_gap_s": sorted(each["longest_gap"] for each in done)[len(done) * 99 // 100],
        "tokens": streams * tokens,
    }


async def _first(target: str, key: str, requests: int) -> dict[str, Any]:
    async with grpc.aio.insecure_channel(target) as channel:
        client = Client(channel, key)
        for number in range(20):
            await client.first_token_s(number)
        return {"first_token_s": [await client.first_token_s(number) for number in range(requests)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("streams", "first"))
    parser.add_argument("--target", required=True)
    parser.add_argument("--key", default="")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--requests", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.what == "streams":
        found = asyncio.run(_streams(arguments.target, arguments.key, arguments.streams, arguments.tokens))
    else:
        found = asyncio.run(_first(arguments.target, arguments.key, arguments.requests))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
