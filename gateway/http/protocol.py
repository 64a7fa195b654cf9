"""One HTTP connection: uvicorn's protocol with bounds on what a client may hold, and for how long.

    a head must come within `head_timeout_s` and _MAX_HEAD_BYTES; its body is the business of whoever reads it
    an answer must be taken: without any progress for `write_timeout_s` the connection is cut
    a connection that waits for its next request is closed after `keep_alive_s`

A request that comes before the last one is answered (pipelining) is not served: the connection closes behind that
answer, which by RFC 9112 tells the client to send it again. So reading never pauses while an answer is made, and a
client that goes is noticed.
"""

import asyncio
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway.config import HttpConfig
from gateway.errors import OverloadedError
from gateway.http.errors import Refusal, refusal_of
from gateway.http.reply import dumped
from gateway.http.until_closed import until_closed

_MAX_HEAD_BYTES = 32_768

_NOT_HTTP = Refusal(400, "what was sent is not valid HTTP", "invalid_request_error", "invalid_http")
_HEAD_TOO_LARGE = Refusal(
    431, f"the head has more than {_MAX_HEAD_BYTES} bytes", "invalid_request_error", "head_too_large"
)
_HEAD_TOO_SLOW = Refusal(408, "the head did not arrive in time", "timeout_error", "head_too_slow")
_REASONS = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class BoundedProtocol(HttpToolsProtocol):
    """Invariant: whenever no request is being served, a timer runs that will close the connection."""

    def __init__(self, bounds: HttpConfig, config: Config, state: ServerState) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._bounds = bounds
        self._head_bytes = 0  # as they came
        self._parsed_bytes = 0  # of the same head, as the parser tells
        self._in_head = True
        self._deaf = False  # whatever comes now is not looked at
        self._refusal = _NOT_HTTP  # what to say when parsing fails
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0

    # ------------------------------------------------------------------------------------------------ the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # To be told of everything that a client does not take. Not 0: by TLS nothing at all would count as too much.
        transport.set_write_buffer_limits(high=1, low=0)
        if len(self.connections) > self._bounds.max_connections:
            most = self._bounds.max_connections
            error = OverloadedError(f"{most} connections are all there may be", reason="TOO_MANY_CONNECTIONS")
            self._refuse(refusal_of(error))
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        super().data_received(data)
        self._head_bytes += len(data) if self._in_head else 0  # also what came before the head in the same piece
        if self._serves or self.transport.is_closing():
            return
        if self._in_head and self._head_bytes > _MAX_HEAD_BYTES:
            self._refuse(_HEAD_TOO_LARGE)
        elif self._head_timer is None:
            self._expect_head()

    @property
    def _serves(self) -> bool:
        """Whether a request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    # ------------------------------------------------------------------------------------------- the parser's findings

    def on_message_begin(self) -> None:
        if self._serves:
            self._listen_no_more()
        if self._deaf:
            return
        self._in_head = True
        self._head_bytes = self._parsed_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._deaf:
            self._count_head(url)
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(name, value)
        # What follows a body in pieces may not add to the head that was authenticated.
        if self._in_head and not self._deaf:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._deaf:
            self._check_head()
            self._in_head = False
            self._stop_head_timer()
            super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, app if cycle.scope["http_version"] == "1.1" else until_closed(app, cycle))

    def on_body(self, body: bytes) -> None:
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        if not self._deaf:
            super().on_message_complete()

    def _count_head(self, *parts: bytes) -> None:
        """Also within one piece of data, which may hold a whole head, and more."""
        self._parsed_bytes += sum(map(len, parts))
        if self._parsed_bytes > _MAX_HEAD_BYTES:
            self._refusal = _HEAD_TOO_LARGE
            raise ValueError("the head is too large")  # the parser stops, see send_400_response

    def _check_head(self) -> None:
        """What the parser lets pass, and two programs may read in two ways."""
        version = self.parser.get_http_version()
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        hosts = sum(name == b"host" for name, _ in self.headers)
        if (
            version not in {"1.0", "1.1"}
            or codings not in ([], [b"chunked"])
            or hosts > 1
            or hosts < (version == "1.1")
        ):
            raise ValueError("not HTTP as it is spoken here")  # the parser stops, see send_400_response

    def _unsupported_upgrade_warning(self) -> None:
        self._listen_no_more()  # the parser reads nothing behind such a head

    def _listen_no_more(self) -> None:
        self._deaf = True
        if self._serves:
            self.cycle.keep_alive = False

    # ---------------------------------------------------------------------------------------------------- refusals

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP. An answer that is on its way is not disturbed."""
        if self._serves and not self.cycle.more_body:
            self._listen_no_more()
        elif self._serves and self.cycle.response_started:
            self.transport.abort()
        else:
            if self._serves:  # its body is broken: nobody shall wait for the rest, or answer
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            self._refuse(self._refusal)

    def _refuse(self, refusal: Refusal) -> None:
        self._deaf = True
        self._stop_head_timer()
        body = dumped(refusal.document())
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        lines = [f"{name}: {value}" for name, value in (*headers.items(), *refusal.headers)]
        status = f"HTTP/1.1 {refusal.status} {_REASONS.get(refusal.status, 'Service Unavailable')}"
        self.transport.write("\r\n".join([status, *lines, "", ""]).encode() + body)
        self.transport.close()

    # ------------------------------------------------------------------------------------------------------ timers

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self._bounds.head_timeout_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._head_bytes:
            self._refuse(_HEAD_TOO_SLOW)
        else:
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self._bounds.write_timeout_s, self._look_for_progress)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def _look_for_progress(self) -> None:
        self._write_timer = None
        unsent = self.transport.get_write_buffer_size()
        if unsent >= self._unsent_bytes:
            self.transport.abort()
            return
        self._unsent_bytes = unsent
        self._write_timer = self.loop.call_later(self._bounds.write_timeout_s, self._look_for_progress)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _stop_timers(self) -> None:
        self._stop_head_timer()
        self._stop_write_timer()
