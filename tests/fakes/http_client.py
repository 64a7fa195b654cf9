"""Speaks HTTP over a bare socket, well or badly: what no client library would do is what servers must withstand."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        return error

    @property
    def events(self) -> list[Any]:
        """What the stream said, without its end mark."""
        lines = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line]
        return [json.loads(line) for line in lines if line != "[DONE]"]


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def request(
        self, method: str, path: str, body: bytes | Mapping[str, Any] = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        await self.send(request_bytes(method, path, body, headers))

    async def answer(self) -> Answer:
        status, headers = await self.head()
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join([chunk async for chunk in self.chunks()])
        else:
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(status, headers, body)

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), headers

    async def chunks(self) -> AsyncIterator[bytes]:
        while length := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(length + 2))[:-2]
        await self.reader.readline()

    async def is_closed(self, timeout_s: float = 5.0) -> bool:
        """Whether the server closes the connection in time, saying nothing more."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await self.reader.read(1) == b""
        return self.reader.at_eof() or self.reader.exception() is not None


@contextlib.asynccontextmanager
async def connected(address: str | None) -> AsyncIterator[Connection]:
    assert address is not None
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def request_bytes(
    method: str, path: str, body: bytes | Mapping[str, Any] = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    all_headers = {"host": "test", **({"content-length": str(len(data))} if data else {}), **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in all_headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + data


async def ask(
    address: str | None,
    method: str,
    path: str,
    body: bytes | Mapping[str, Any] = b"",
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Make one request on a connection of its own."""
    credential = {"authorization": f"Bearer {key}"} if key else {}
    async with asyncio.timeout(30), connected(address) as connection:
        await connection.request(method, path, body, {**credential, **(headers or {})})
        return await connection.answer()
