"""The boundary of the server: every call passes here, whatever its service.

Authenticates (a service without an authenticator is reachable only if it is declared open), refuses claims of identity
in metadata, counts what is in flight, translates errors, and tells the observer how each call ended, and the journal of
its service, if it has one. Bounds how many calls there are at a time: strangers, whose streams have a small bound of
their own, take no room from tenants.
"""

import asyncio
import inspect
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc
import structlog
from google.protobuf.message import Message

from gateway.config import GatewayLimits
from gateway.errors import (
    GatewayError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    UnauthenticatedError,
    Violation,
)
from gateway.identity.callers import Caller, Certificate, Credentials, Operator, Principal
from gateway.identity.certificates import certificate_in
from gateway.identity.claims import claims_identity
from gateway.rpc.journal import EndedCall
from gateway.rpc.status import DETAILS_KEY, code_of, status_of
from gateway.serving.calls import Calls
from gateway.serving.capacity import Capacity
from tracing.calls import NO_TRACE, CallTrace, NoTracer, Tracer
from tracing.spans import Attributes

_log = structlog.get_logger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
# Generic to the type checker only.
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Found: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
_Behaviour = Callable[[Any, Context], Awaitable[Any]]


# Set for the task of each call before its handler runs; without it a handler fails instead of serving a stranger.
_principal: ContextVar[Principal] = ContextVar("_principal")
_trace: ContextVar[CallTrace] = ContextVar("_trace", default=NO_TRACE)


def current_caller() -> Caller:
    """Return the tenant's side of the call that is being served."""
    principal = _principal.get()
    if not isinstance(principal, Caller):
        raise TypeError("the current call is not a tenant's")
    return principal


def current_trace() -> CallTrace:
    """Return what is recorded of the call that is being served."""
    return _trace.get()


class Authenticator(Protocol):
    async def authenticate(self, credentials: Credentials, arrived_at: float) -> Principal:
        """Return who calls. Raises UnauthenticatedError, PermissionDeniedError or UnavailableError."""
        ...


class RpcObserver(Protocol):
    def rpc_finished(self, method: str, code: str, tenant: str, seconds: float) -> None: ...


class Journal(Protocol):
    async def ended(self, call: EndedCall) -> None:
        """A call is about to be answered. Raises nothing."""
        ...


@dataclass(slots=True)
class _Call:
    """What is known of a call that is being served."""

    method: str
    request: Any
    context: Context
    principal: Principal | None = None
    code: grpc.StatusCode = grpc.StatusCode.OK
    told: bool = False  # the journal knows

    @property
    def tenant(self) -> str:
        return self.principal.tenant_id if isinstance(self.principal, Caller) else ""

    @property
    def name(self) -> str:
        """Whoever calls, apart from all others."""
        return f"tenant {self.tenant}" if self.tenant else f"operator {self.operator}"

    @property
    def operator(self) -> str:
        return self.principal.name if isinstance(self.principal, Operator) else ""

    async def tell(self, journal: Journal | None) -> None:
        """Tell the journal, once."""
        if journal is None or self.told:
            return
        self.told = True
        await journal.ended(EndedCall(self.method, self.request, self.operator, self.code.name, self.context.peer()))


class Boundary(grpc.aio.ServerInterceptor):
    """The interceptor in front of all services."""

    def __init__(
        self,
        authenticators: Mapping[str, Authenticator],
        open_services: frozenset[str],
        limits: GatewayLimits,
        observer: RpcObserver,
        journals: Mapping[str, Journal] | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Both kinds of services by full name. One in neither is refused. `journals` by full name, too."""
        self._authenticators = dict(authenticators)
        self._open_services = open_services
        self._observer = observer
        self._tracer = tracer or NoTracer()
        self._journals = dict(journals or {})
        self._max_answer_bytes = limits.max_message_bytes
        self.calls = Calls(limits.max_concurrent_rpcs)
        self._open_streams = Capacity(limits.max_open_streams, "streams without credentials", "TOO_MANY_OPEN_STREAMS")
        self._guarded: dict[str, _Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Found]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Found:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        service = method.split("/")[1] if method.count("/") == 2 else ""
        if handler is None:
            return handler
        guarded = self._guarded.get(method)
        if guarded is None:  # as many as there are methods: unknown ones have no handler
            guarded = self._guarded[method] = (
                self._bound(handler) if service in self._open_services else self._guard(method, service, handler)
            )
        return guarded

    def _bound(self, handler: _Handler) -> _Handler:
        """Bound the streams of an open service. Its other calls are over at once, and never refused."""
        if handler.stream_stream is not None:
            make, inner = grpc.stream_stream_rpc_method_handler, handler.stream_stream
        elif handler.unary_stream is not None:
            make, inner = grpc.unary_stream_rpc_method_handler, handler.unary_stream
        else:
            return handler
        return make(self._wrap_open(inner), handler.request_deserializer, handler.response_serializer)

    def _wrap_open(self, inner: Any) -> _Behaviour:
        async def behaviour(request: Any, context: Context) -> None:
            try:
                with self._open_streams.take():
                    answers = inner(request, context)
                    if inspect.isawaitable(answers):
                        await answers
                        return
                    async for answer in answers:
                        await context.write(answer)
            except GatewayError as error:
                await _abort(context, error)

        return behaviour

    def _guard(self, method: str, service: str, handler: _Handler) -> _Handler:
        authenticator = self._authenticators.get(service, _Nobody())
        journal = self._journals.get(service)
        span = method.removeprefix("/")
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._wrap(span, authenticator, journal, handler.unary_unary),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                self._wrap(span, authenticator, journal, handler.unary_stream),
                handler.request_deserializer,
                handler.response_serializer,
            )
        raise NotImplementedError(f"{method} streams requests: the boundary has no guard for that")

    def _wrap(self, span: str, authenticator: Authenticator, journal: Journal | None, inner: Any) -> _Behaviour:
        method = span.rpartition(".")[2]  # without the package
        about: Attributes = {"rpc.system.name": "grpc", "rpc.method": span}

        async def behaviour(request: Any, context: Context) -> Any:
            arrived_at = time.monotonic()
            call = _Call(method, request, context)
            metadata: Any = context.invocation_metadata() or ()
            trace = self._tracer.begin(span, about, metadata, arrived_at)
            try:
                with self.calls.in_flight.counted():
                    with trace.stage("authenticate"):
                        call.principal = await authenticator.authenticate(_credentials(context, metadata), arrived_at)
                    trace.known(call.name, lambda: _about(call))
                    _refuse_claims(metadata)
                    _serve(call.principal, trace)
                    with self.calls.room.take():
                        answer = await inner(request, context)
                        self._check_size(answer)
                        await call.tell(journal)
                        return answer
            except GatewayError as error:
                call.code = code_of(error)
                await call.tell(journal)
                await _abort(context, error)
            except asyncio.CancelledError:
                call.code = _code_of_cancellation(context)
                await call.tell(journal)
                raise
            except Exception as error:  # noqa: BLE001 - whatever a handler raises, its call must end
                if isinstance(error, grpc.aio.InternalError) or context.cancelled():
                    call.code = _code_of_cancellation(context)
                    await call.tell(journal)
                    raise client_gone() from None
                call.code = grpc.StatusCode.INTERNAL
                kind, at = type(error).__name__, _frames(error)
                _log.error("call failed", method=method, tenant=call.tenant, error=kind, at=at)
                await call.tell(journal)
                await _abort(context, InternalError("an unexpected error; the gateway's log tells more"))
            finally:
                self._ended(call, trace, time.monotonic() - arrived_at)

        return behaviour

    def _ended(self, call: _Call, trace: CallTrace, seconds: float) -> None:
        code = call.code.name
        self._observer.rpc_finished(call.method, code, call.tenant, seconds)
        trace.end(code, lambda: {"rpc.response.status_code": code})

    def _check_size(self, answer: Any) -> None:
        """Refuse what gRPC would not send, in words, and before it counts as answered."""
        size = answer.ByteSize() if isinstance(answer, Message) else 0
        if size > self._max_answer_bytes:
            told = f"the answer has {size} bytes; at most {self._max_answer_bytes} are sent: ask for less at a time"
            raise OverloadedError(told, reason="ANSWER_TOO_LARGE")


def _serve(principal: Principal, trace: CallTrace) -> None:
    """Whatever this task does from now on is for that call."""
    _principal.set(principal)
    _trace.set(trace)


def _about(call: _Call) -> Attributes:
    """Return who calls, for a trace."""
    return {"radixgate.tenant": call.tenant, "radixgate.operator": call.operator}


class _Nobody:
    """The authenticator of services that were given none."""

    async def authenticate(self, credentials: Credentials, arrived_at: float) -> Principal:
        raise UnauthenticatedError("this service accepts no credentials")


async def _abort(context: Context, error: GatewayError) -> NoReturn:
    status = status_of(error)
    try:
        # What a handler has set is none of what `abort` sends, unless it is given again.
        others: Any = context.trailing_metadata() or ()
        details = (DETAILS_KEY, status.SerializeToString())
        await context.abort(code_of(error), status.message, (*others, details))
    except grpc.aio.InternalError:
        raise client_gone() from None
    raise AssertionError("unreachable")


def client_gone() -> asyncio.CancelledError:
    """What a failed write means: nobody is there to read. In the form in which gRPC itself says so, and without noise.

    gRPC does not tell a handler in time that its client has gone: a write that is under way fails first.
    """
    return asyncio.CancelledError("the client has gone")


def _credentials(context: Context, metadata: Any) -> Credentials:
    values = [value for key, value in metadata if key == "authorization"]
    if len(values) > 1:
        raise UnauthenticatedError("more than one `authorization` entry")
    if values:
        return Credentials(values[0])
    return Credentials(certificate=_certificate(context))


def _certificate(context: Context) -> Certificate | None:
    """Return the identities of the client's certificate, which TLS has verified."""
    peer = context.auth_context()
    certificates = list(peer.get("x509_pem_cert", ()))
    if list(peer.get("transport_security_type", ())) != [b"ssl"] or len(certificates) != 1:
        return None
    return certificate_in(certificates[0])


_DEADLINE_SLACK_S = 0.05


def _refuse_claims(metadata: Any) -> None:
    claims = {key for key, _ in metadata if claims_identity(key)}
    if claims:
        raise InvalidRequestError(
            [
                Violation(
                    f"metadata[{key}]", "identity and cache namespace come from the credential; remove this entry"
                )
                for key in sorted(claims)
            ],
            reason="IDENTITY_CLAIMED",
        )


def _code_of_cancellation(context: Context) -> grpc.StatusCode:
    """Tell why: gRPC cancels the handler both when the client has gone and when its deadline has passed.

    The client's deadline passes before ours, which counts from when its request arrived.
    """
    remaining: float | None = context.time_remaining()  # None without a deadline, whatever the type says
    passed = remaining is not None and remaining <= _DEADLINE_SLACK_S
    return grpc.StatusCode.DEADLINE_EXCEEDED if passed else grpc.StatusCode.CANCELLED


def _frames(error: BaseException) -> list[str]:
    """Where an error came from. Not its message, which may quote the request."""
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
