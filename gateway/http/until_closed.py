"""Answers of unknown length to clients of HTTP/1.0, who know nothing of chunks: their end is the connection's."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[..., Awaitable[None]]


def until_closed(app: App, cycle: RequestResponseCycle) -> App:
    """Return `app` for one request, which `cycle` answers: its body is sent as it is, never in chunks."""

    async def run(scope: Any, receive: Any, send: Send) -> None:
        unknown_length = False

        async def send_plainly(message: MutableMapping[str, Any]) -> None:
            nonlocal unknown_length
            if message["type"] == "http.response.start":
                unknown_length = all(name != b"content-length" for name, _ in message["headers"])
                if unknown_length:
                    cycle.chunked_encoding = False
            elif unknown_length:
                cycle.expected_content_length = len(message["body"])
            await send(message)

        await app(scope, receive, send_plainly)

    return run
