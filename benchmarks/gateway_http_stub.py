"""The worker without a model of `benchmarks.gateway_stub` behind OpenAI-compatible HTTP, for routers that speak that.

    python -m benchmarks.gateway_http_stub --ready-file FILE [--rate 50]

Each token is an event of its own. Knows only what measurements ask for.
"""

import argparse
import asyncio
import json
from pathlib import Path

from benchmarks.gateway_stub import MODEL

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = {"id": "cmpl-1", "object": "text_completion", "model": MODEL}
_INFO = {
    "/health": {},
    "/health_generate": {},
    "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 1 << 20}]},
    "/model_info": {"model_path": MODEL, "served_model_name": MODEL, "is_generation": True},
    "/get_model_info": {"model_path": MODEL, "served_model_name": MODEL, "is_generation": True},
    "/server_info": {"model_path": MODEL, "served_model_name": MODEL},
    "/get_server_info": {"model_path": MODEL, "served_model_name": MODEL},
}


class Server:
    def __init__(self, rate: float) -> None:
        self._rate = rate

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode().partition("?")[0]
                body = await reader.readexactly(_length(head))
                if path == "/v1/completions":
                    await self._complete(json.loads(body), writer)
                else:
                    writer.write(_answer(path))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _complete(self, request: dict[str, int], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        writer.write(_HEAD)
        due = loop.time()
        for number in range(request["max_tokens"]):
            last = number == request["max_tokens"] - 1
            choice = {"index": 0, "text": " word", "finish_reason": "length" if last else None}
            writer.write(_chunk(b"data: " + json.dumps({**_EVENT, "choices": [choice]}).encode() + b"\n\n"))
            await writer.drain()
            if not last and self._rate:
                due += 1 / self._rate
                await asyncio.sleep(max(0.0, due - loop.time()))
        writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def _answer(path: str) -> bytes:
    content = json.dumps(_INFO.get(path, {"error": "unknown"})).encode()
    status = b"200 OK" if path in _INFO else b"404 Not Found"
    return b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        status, len(content), content,
    )  # fmt: skip


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


async def _serve(rate: float, ready_file: Path) -> None:
    server = await asyncio.start_server(Server(rate).connection, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    await asyncio.to_thread(ready_file.write_text, json.dumps({"http": f"{host}:{port}"}))
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=50.0)
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.rate, arguments.ready_file))


if __name__ == "__main__":
    main()
