"""Clients of a gateway, a proxy or a worker: streams that run side by side, and single requests one after the other.

    python -m benchmarks.gateway_load streams --target HOST:PORT [--key KEY] --streams 256 --tokens 500
    python -m benchmarks.gateway_load first   --target HOST:PORT [--key KEY] --requests 200

Over gRPC, or with `--http` over the OpenAI-compatible HTTP API. Prints JSON. A process of its own, so that its work is
not counted as that of what it asks.
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import grpc

from benchmarks.gateway_stub import MODEL
from radixgate.v1 import inference_pb2

PROMPT_TOKENS = 64


class Client(Protocol):
    def call(self, tokens: int, number: int) -> AsyncIterator[bytes]:
        """Ask for so many tokens; yield what comes, piece by piece."""
        ...

    def num_tokens(self, pieces: Sequence[bytes]) -> int: ...


class GrpcClient:
    def __init__(self, channel: grpc.aio.Channel, key: str) -> None:
        # Bytes as they are: what is in a message is looked at when the time has been taken.
        self._generate: Any = channel.unary_stream(
            "/radixgate.v1.InferenceService/Generate",
            request_serializer=lambda message: message.SerializeToString(),
        )
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()

    async def call(self, tokens: int, number: int) -> AsyncIterator[bytes]:
        request = inference_pb2.GenerateRequest(
            tokens=inference_pb2.TokenPrompt(token_ids=_prompt(number)),
            sampling=inference_pb2.SamplingParams(max_new_tokens=tokens, ignore_eos=True),
        )
        async for message in self._generate(request, metadata=self._metadata):
            yield message

    def num_tokens(self, pieces: Sequence[bytes]) -> int:
        return sum(len(inference_pb2.GenerateResponse.FromString(piece).token_ids) for piece in pieces)


class HttpClient:
    """A connection for each stream that runs, kept for the next one."""

    def __init__(self, target: str, key: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._key = key
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, tokens: int, number: int) -> AsyncIterator[bytes]:
        prompt = " ".join(f"w{token_id}" for token_id in _prompt(number))  # not every server takes token ids
        body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": tokens, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\n" + (f"authorization: Bearer {self._key}\r\n" if self._key else "")
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection(self._host, self._port)
        writer.write(head.encode() + b"\r\n" + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.partition(b"\r\n")[0]:
            raise RuntimeError(f"refused: {answer.decode()} {(await reader.read(2000)).decode()}")
        while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
        self._free.append((reader, writer))

    def num_tokens(self, pieces: Sequence[bytes]) -> int:
        """Count words, which is what a token reads like here: HTTP tells no ids."""
        events = [line[6:] for line in b"".join(pieces).split(b"\n") if line.startswith(b"data: {")]
        texts = [choice["text"] for event in events for choice in json.loads(event)["choices"]]
        return "".join(texts).count("word")


def _prompt(number: int) -> list[int]:
    return [(number * 31 + i) % 999 for i in range(PROMPT_TOKENS)]


async def _stream(client: Client, tokens: int, number: int) -> dict[str, float]:
    """Read one answer to its end; return its times, in seconds of `time.monotonic`, and its messages."""
    sent = time.monotonic()
    first = last = longest = 0.0
    pieces: list[bytes] = []
    async for piece in client.call(tokens, number):
        now = time.monotonic()
        longest = max(longest, now - last) if pieces else 0.0
        first, last = first or now, now
        pieces.append(piece)
    # Read when the time has been taken: a proxy that loses tokens is no faster for it.
    if (came := client.num_tokens(pieces)) != tokens:
        raise RuntimeError(f"{came} tokens came of {tokens}")
    return {"first": first - sent, "begun": first, "ended": last, "longest_gap": longest, "messages": len(pieces)}


@asynccontextmanager
async def _client(target: str, key: str, http: bool) -> AsyncIterator[Client]:
    if http:
        yield HttpClient(target, key)
        return
    async with grpc.aio.insecure_channel(target) as channel:
        yield GrpcClient(channel, key)


async def _streams(client: Client, streams: int, tokens: int) -> dict[str, Any]:
    await _stream(client, 1, 0)
    done = await asyncio.gather(*(_stream(client, tokens, i) for i in range(streams)))
    return {
        "seconds": max(each["ended"] for each in done) - min(each["begun"] for each in done),
        "messages": sum(each["messages"] for each in done),
        "longest_gap_s": sorted(each["longest_gap"] for each in done)[len(done) * 99 // 100],
        "tokens": streams * tokens,
    }


async def _first(client: Client, requests: int) -> dict[str, Any]:
    for number in range(20):
        await _stream(client, 1, number)
    return {"first_token_s": [(await _stream(client, 1, number))["first"] for number in range(requests)]}


async def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    async with _client(arguments.target, arguments.key, arguments.http) as client:
        if arguments.what == "streams":
            return await _streams(client, arguments.streams, arguments.tokens)
        return await _first(client, arguments.requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("streams", "first"))
    parser.add_argument("--target", required=True)
    parser.add_argument("--key", default="")
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--requests", type=int, default=200)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(_run(arguments))))


if __name__ == "__main__":
    main()
