"""What goes back to the client of one request: a JSON document, or a stream of events. Knows ASGI's way of sending."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from email.utils import formatdate
from typing import Any

from gateway.errors import CancelledRequestError
from gateway.http.body import Receive, next_chunk
from gateway.http.errors import Headers, Json, Refusal

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Reply:
    """One answer. Invariant: it is begun once and ended once, whatever happens in between."""

    def __init__(self, send: Send, request_id: str, arrived_at: float, *, closes: Callable[[], bool]) -> None:
        """`closes`: whether the connection shall end with this answer, asked when it begins."""
        self._send = send
        self._request_id = request_id
        self._arrived_at = arrived_at
        self._closes = closes
        self._begins = asyncio.Lock()  # several completions may want to be the first
        self._streams = False
        self._ended = False
        self._more_headers: Callable[[], Headers] = tuple
        self.status: int | None = None  # None: not begun

    def with_headers(self, more: Callable[[], Headers]) -> None:
        """Add headers to the answer, which are asked for when it begins."""
        self._more_headers = more

    async def document(self, status: int, document: Json, headers: Headers = ()) -> None:
        await self.written(status, dumped(document), headers)

    async def written(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """Send a JSON document that has been written down."""
        length = ("content-length", str(len(body)))
        await self._begin(status, (("content-type", "application/json"), length, *headers))
        await self._body(body, more=False)

    async def events(self, events: bytes) -> None:
        """Send events, see `event`; the first ones begin the answer."""
        async with self._begins:
            if not self._streams:
                self._streams = True
                await self._begin(200, _EVENT_STREAM)
        await self._body(events, more=True)

    async def end_events(self) -> None:
        """End a stream that was not cut short."""
        await self._body(b"data: [DONE]\n\n", more=False)

    async def refuse(self, refusal: Refusal) -> None:
        """Say what went wrong, in the way that is still open. Without effect after the end."""
        if self._ended:
            return
        if self._streams:
            await self._body(event(refusal.document()), more=False)
        else:
            await self.document(refusal.status, refusal.document(), refusal.headers)

    async def refuse_unread(self, refusal: Refusal, receive: Receive, before_s: float, after_s: float) -> None:
        """Refuse a request whose body has not been read, so that the client learns of it.

        The body gets `before_s` to end: then the connection stays. Otherwise it closes, `after_s` after the answer: who
        is cut off while it sends may never read why.
        """
        if before_s and await _swallow(receive, before_s):
            await self.refuse(refusal)
            return
        body = dumped(refusal.document())
        headers = (("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close"))
        await self._begin(refusal.status, (*headers, *refusal.headers))
        await self._body(body, more=True)
        if after_s:
            await _swallow(receive, after_s)
        await self._body(b"", more=False)

    async def _begin(self, status: int, headers: Headers) -> None:
        self.status = status
        own = [
            ("date", formatdate(usegmt=True)),
            ("x-request-id", self._request_id),
            ("openai-processing-ms", str(round((time.monotonic() - self._arrived_at) * 1000))),
        ]
        if self._closes():
            own.append(("connection", "close"))
        own.extend(self._more_headers())
        encoded = [(name.encode(), value.encode("latin-1", "replace")) for name, value in (*headers, *own)]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def _body(self, body: bytes, *, more: bool) -> None:
        if not more:
            self._ended = True
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


# Proxies that collect answers before they pass them on shall not do so with these.
_EVENT_STREAM = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)


def dumped(document: Json) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


# Line ends for programs that read events as text and split them by all that Unicode calls so.
_LINE_ENDS = ((b"\xc2\x85", rb"\u0085"), (b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"))


def event(document: Json) -> bytes:
    written = dumped(document)
    if not written.isascii():
        for end, escaped in _LINE_ENDS:
            written = written.replace(end, escaped)
    return b"data: " + written + b"\n\n"


async def _swallow(receive: Receive, seconds: float) -> bool:
    """Read and forget a body for a while; return whether it has ended."""
    more = True
    with contextlib.suppress(TimeoutError, CancelledRequestError):
        async with asyncio.timeout(seconds):
            while more:
                _, more = await next_chunk(receive)
    return not more
