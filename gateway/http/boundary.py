"""The boundary of the HTTP API: every request passes here, whatever its route.

Finds the route, authenticates, refuses claims of identity, counts what is in flight together with the calls of gRPC,
translates errors, and tells the observer how each request ended.
"""

import asyncio
import re
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from gateway.errors import (
    GatewayError,
    InternalError,
    InvalidRequestError,
    UnauthenticatedError,
    UnavailableError,
    Violation,
)
from gateway.http.body import Receive
from gateway.http.errors import (
    BodyTooLargeError,
    BodyTooSlowError,
    MethodNotAllowedError,
    UnknownRouteError,
    refusal_of,
    row_of,
)
from gateway.http.fields import MAX_VIOLATIONS
from gateway.http.reply import Reply, Send
from gateway.identity.callers import Caller, Credentials
from gateway.identity.claims import claims_identity
from gateway.serving.calls import Calls
from tracing.calls import NO_TRACE, CallTrace, NoTracer, Tracer
from tracing.spans import Attributes

_log = structlog.get_logger(__name__)

Scope = Mapping[str, Any]

_LINGER_S = 1.0  # for the body of a request that is refused
_REQUEST_ID = re.compile(r"[!-~]{1,100}")  # printable, without spaces; shorter than the pipeline's limit


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request as it arrives, and the way to its client."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]  # lower-case names
    request_id: str
    arrived_at: float
    receive: Receive
    reply: Reply

    def header(self, name: str) -> str | None:
        """Return the last one of this name."""
        return next((value for found, value in reversed(self.headers) if found == name), None)


@dataclass(slots=True)
class Call:
    """One authenticated request."""

    caller: Caller
    exchange: Exchange
    name: str  # what stands in the path behind its route
    body_is_read: bool = False
    trace: CallTrace = NO_TRACE


@dataclass(frozen=True, slots=True)
class Route:
    """A path that ends with a slash is one for all names behind it."""

    label: str  # for metrics
    method: str
    path: str
    serve: Callable[[Call], Awaitable[None]]

    @property
    def span(self) -> str:
        """What its requests are called in traces."""
        return f"{self.method} {self.path}"

    @property
    def span_attributes(self) -> Attributes:
        return {"http.request.method": self.method, "http.route": self.path}


class CallerAuthenticator(Protocol):
    async def authenticate(self, credentials: Credentials, arrived_at: float) -> Caller:
        """Return who calls. Raises UnauthenticatedError, PermissionDeniedError or UnavailableError."""
        ...


class RequestObserver(Protocol):
    def rpc_finished(self, method: str, code: str, tenant: str, seconds: float) -> None: ...


class HttpBoundary:
    """An ASGI application."""

    def __init__(
        self,
        routes: Sequence[Route],
        authenticator: CallerAuthenticator,
        calls: Calls,
        is_serving: Callable[[], bool],
        observer: RequestObserver,
        tracer: Tracer | None = None,
    ) -> None:
        self._routes = {route.path: route for route in routes}
        self._authenticator = authenticator
        self._calls = calls
        self._is_serving = is_serving
        self._observer = observer
        self._tracer = tracer or NoTracer()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = self._arrived(scope, receive, send)
        if exchange.path == "/health" and exchange.method in {"GET", "HEAD"}:
            await self._tell_health(exchange.reply)
            return
        try:
            route, name = self._find(exchange.method, exchange.path)
        except GatewayError as error:
            await _refuse(exchange, error, body_is_read=False)
            return
        await self._guard(exchange, route, name)

    def _arrived(self, scope: Scope, receive: Receive, send: Send) -> Exchange:
        arrived_at = time.monotonic()
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
        asked_id = next((value for name, value in headers if name == "x-request-id"), "")
        request_id = asked_id if _REQUEST_ID.fullmatch(asked_id) else uuid.uuid4().hex
        return Exchange(
            scope["method"],
            scope["path"],
            scope["query_string"].decode("latin-1"),
            headers,
            request_id,
            arrived_at,
            receive,
            Reply(send, request_id, arrived_at, closes=lambda: self._calls.in_flight.closed),
        )

    async def _tell_health(self, reply: Reply) -> None:
        if self._is_serving() and not self._calls.in_flight.closed:
            await reply.document(200, {"status": "serving"})
        else:
            await reply.document(503, {"status": "not serving"})

    def _find(self, method: str, path: str) -> tuple[Route, str]:
        route, name = self._routes.get(path), ""
        if route is None or path.endswith("/"):
            folder = next((each for each in self._routes if each.endswith("/") and path.startswith(each)), "")
            route, name = self._routes.get(folder), path[len(folder) :]
            if not name:
                route = None
        if route is None:
            raise UnknownRouteError("there is nothing at this path")
        if method != route.method:
            raise MethodNotAllowedError(method, route.method)
        return route, name

    async def _guard(self, exchange: Exchange, route: Route, name: str) -> None:
        tenant, code, call = "", "OK", None
        trace = self._tracer.begin(route.span, route.span_attributes, exchange.headers, exchange.arrived_at)
        try:
            with self._calls.in_flight.counted():
                with trace.stage("authenticate"):
                    caller = await self._authenticator.authenticate(_credentials(exchange), exchange.arrived_at)
                tenant = caller.tenant_id
                trace.known(f"tenant {tenant}", lambda: {"radixgate.tenant": caller.tenant_id})
                _refuse_claims(exchange)
                with self._calls.room.take():
                    call = Call(caller, exchange, name, trace=trace)
                    await route.serve(call)
        except GatewayError as error:
            code = row_of(error).code
            await _refuse(exchange, error, body_is_read=call is not None and call.body_is_read)
        except asyncio.CancelledError:  # the server stops, and waits for a last word
            ended = UnavailableError("the gateway shut down before the end", reason="GATEWAY_SHUTTING_DOWN")
            code = row_of(ended).code
            await exchange.reply.refuse(refusal_of(ended))
        except Exception as error:  # noqa: BLE001 - whatever a route raises, its request must end
            code = "INTERNAL"
            _log.error(
                "request failed", request_id=exchange.request_id, route=route.label, tenant=tenant,
                error=type(error).__name__, at=_frames(error),
            )  # fmt: skip
            told = InternalError("an unexpected error; the gateway's log tells more")
            await _refuse(exchange, told, body_is_read=call is not None and call.body_is_read)
        finally:
            trace.end(code, lambda: _answered(exchange))
            self._observer.rpc_finished(route.label, code, tenant, time.monotonic() - exchange.arrived_at)


def _answered(exchange: Exchange) -> Attributes:
    status = exchange.reply.status
    answered: Attributes = {"http.response.status_code": status} if status is not None else {}
    return {"radixgate.request_id": exchange.request_id, **answered}


async def _refuse(exchange: Exchange, error: GatewayError, *, body_is_read: bool) -> None:
    refusal = refusal_of(error)
    if body_is_read:
        await exchange.reply.refuse(refusal)
        return
    before_s = after_s = _LINGER_S
    if isinstance(error, BodyTooLargeError):
        before_s = 0
    if isinstance(error, BodyTooSlowError) or exchange.header("expect") is not None:
        before_s = after_s = 0  # who waits for a word before it sends its body has sent none
    await exchange.reply.refuse_unread(refusal, exchange.receive, before_s, after_s)


def _credentials(exchange: Exchange) -> Credentials:
    """A certificate of the connection is none: a browser would add it to the requests of any page."""
    values = [value for name, value in exchange.headers if name == "authorization"]
    if len(values) > 1:
        raise UnauthenticatedError("more than one `authorization` header")
    return Credentials(values[0] if values else None)


def _refuse_claims(exchange: Exchange) -> None:
    """Identity comes from the credential, and nothing that is asked for in the URL would be done."""
    claims = sorted({name for name, _ in exchange.headers if claims_identity(name)})
    violations = [Violation(name, "identity and cache namespace come from the credential") for name in claims]
    if exchange.query:
        violations.append(Violation("query", "there are no parameters in the URL; send fields in the body"))
    if violations:
        raise InvalidRequestError(violations[:MAX_VIOLATIONS], reason="IDENTITY_CLAIMED" if claims else None)


def _frames(error: BaseException) -> list[str]:
    """Where an error came from. Not its message, which may quote the request."""
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
