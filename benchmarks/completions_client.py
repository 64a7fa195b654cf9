"""Asks a server that speaks OpenAI's completions over plain HTTP/1.1, with token ids in and out.

Bytes are only stamped as they arrive and read once the answer is whole: the client shares the cores with the server
that is measured. Nothing of HTTP is here that such a stream does not need: one connection for each request, a
response that is chunked or ends with the connection, events of one `data:` line.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from benchmarks.load import AnswerError, Arrival, Timing
from benchmarks.workloads import Turn

_DONE = b"[DONE]"
_SHOWN_BYTES = 500  # of an error's body


@dataclass(frozen=True, slots=True)
class CompletionsClient:
    """A server at `host` and `port` that serves `model`. Tenants do not exist there."""

    host: str
    port: int
    model: str

    async def answer(self, turn: Turn) -> Timing:
        """Raises AnswerError where the server refuses, or breaks off."""
        request = self._request(turn)
        sent = time.monotonic()
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(request)
            await writer.drain()
            events = [event async for event in _events(reader)]
        except asyncio.IncompleteReadError as error:
            raise AnswerError("the server broke off in the middle of an answer") from error
        finally:
            writer.close()
        return _timing(sent, events)

    def _request(self, turn: Turn) -> bytes:
        body = {
            "model": self.model,
            "prompt": turn.token_ids,
            "max_tokens": turn.max_new_tokens,
            "temperature": turn.temperature,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        if turn.temperature:
            body["seed"] = turn.seed
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + content


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[tuple[float, bytes]]:
    """Yield what follows each `data:`, with the time at which its bytes were there."""
    head = await reader.readuntil(b"\r\n\r\n")
    status, _, fields = head.partition(b"\r\n")
    chunked = b"transfer-encoding: chunked" in fields.lower()
    pieces = _chunks(reader) if chunked else _until_closed(reader)
    if status.split()[1] != b"200":
        body = b"".join([piece async for piece in pieces])
        raise AnswerError(f"{status.decode()}: {body[:_SHOWN_BYTES].decode(errors='replace')}")
    rest = b""
    async for piece in pieces:
        now = time.monotonic()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield now, line[len(b"data:") :].strip()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def _until_closed(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await reader.read(65536):
        yield piece


def _timing(sent_s: float, events: list[tuple[float, bytes]]) -> Timing:
    arrivals = []
    token_ids: list[int] = []
    usage: dict[str, Any] = {}
    if not events or events[-1][1] != _DONE:
        raise AnswerError("the answer has no end")
    for at_s, text in events[:-1]:
        event: dict[str, Any] = json.loads(text)
        if "error" in event:
            raise AnswerError(f"the server reports {event['error']}")
        for choice in event["choices"]:
            if choice.get("token_ids"):
                arrivals.append(Arrival(at_s, len(choice["token_ids"])))
                token_ids += choice["token_ids"]
        usage = event.get("usage") or usage
    if not arrivals or not usage:
        raise AnswerError("the answer has no token ids or no usage: return_token_ids and include_usage were asked for")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Timing(sent_s, tuple(arrivals), tuple(token_ids), usage["prompt_tokens"], cached)
