"""From the gateway's errors to OpenAI's: status, type, code and headers. The one place where they are translated."""

import math
from dataclasses import dataclass
from typing import Any

from gateway.errors import (
    AdapterChangedError,
    AlreadyExistsError,
    CancelledRequestError,
    DeadlineExceededError,
    FailedPreconditionError,
    GatewayError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    NoWorkerError,
    OverloadedError,
    PermissionDeniedError,
    QuotaExceededError,
    StreamLostError,
    UnauthenticatedError,
    UnavailableError,
)

Headers = tuple[tuple[str, str], ...]
Json = dict[str, Any]


class UnknownRouteError(GatewayError):
    reason = "UNKNOWN_ROUTE"


class MethodNotAllowedError(GatewayError):
    """`allowed`: what the path is for."""

    reason = "METHOD_NOT_ALLOWED"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not allowed here; use {allowed}")
        self.allowed = allowed


class BodyTooLargeError(GatewayError):
    reason = "BODY_TOO_LARGE"


class BodyTooSlowError(GatewayError):
    reason = "BODY_TOO_SLOW"


class UnsupportedMediaError(GatewayError):
    reason = "UNSUPPORTED_MEDIA_TYPE"


@dataclass(frozen=True, slots=True)
class Row:
    """How one class of errors is told."""

    status: int
    kind: str  # `type` in OpenAI's errors
    code: str  # the gRPC status of the same error, for metrics


ROWS: dict[type[GatewayError], Row] = {
    InvalidRequestError: Row(400, "invalid_request_error", "INVALID_ARGUMENT"),
    UnauthenticatedError: Row(401, "authentication_error", "UNAUTHENTICATED"),
    PermissionDeniedError: Row(403, "permission_error", "PERMISSION_DENIED"),
    NotFoundError: Row(404, "invalid_request_error", "NOT_FOUND"),
    UnknownRouteError: Row(404, "invalid_request_error", "NOT_FOUND"),
    MethodNotAllowedError: Row(405, "invalid_request_error", "UNIMPLEMENTED"),
    BodyTooSlowError: Row(408, "timeout_error", "DEADLINE_EXCEEDED"),
    AlreadyExistsError: Row(409, "conflict_error", "ALREADY_EXISTS"),
    FailedPreconditionError: Row(409, "conflict_error", "FAILED_PRECONDITION"),
    BodyTooLargeError: Row(413, "invalid_request_error", "RESOURCE_EXHAUSTED"),
    UnsupportedMediaError: Row(415, "invalid_request_error", "INVALID_ARGUMENT"),
    QuotaExceededError: Row(429, "rate_limit_error", "RESOURCE_EXHAUSTED"),
    CancelledRequestError: Row(499, "cancelled_error", "CANCELLED"),
    GatewayError: Row(500, "server_error", "INTERNAL"),
    InternalError: Row(500, "server_error", "INTERNAL"),
    UnavailableError: Row(503, "server_error", "UNAVAILABLE"),
    AdapterChangedError: Row(503, "server_error", "UNAVAILABLE"),
    NoWorkerError: Row(503, "server_error", "UNAVAILABLE"),
    StreamLostError: Row(503, "server_error", "UNAVAILABLE"),
    OverloadedError: Row(503, "server_error", "RESOURCE_EXHAUSTED"),
    DeadlineExceededError: Row(504, "timeout_error", "DEADLINE_EXCEEDED"),
}

# What OpenAI's clients would try again although it cannot help, or costs what it cost the first time.
_NOT_AGAIN = (
    AlreadyExistsError,
    FailedPreconditionError,
    BodyTooSlowError,
    CancelledRequestError,
    DeadlineExceededError,
)
# `type` of a limit, where OpenAI has one for it.
_LIMIT_KINDS = {
    "tokens_per_minute": "tokens",
    "requests_per_minute": "requests",
    "max_concurrent_requests": "requests",
    "max_queued_requests": "requests",
}
_RETRY_AFTER_S = 1.0  # where nobody knows better
_MAX_MESSAGE_CHARS = 2048
_MAX_PARAM_CHARS = 256


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as a client gets it."""

    status: int
    message: str
    kind: str
    code: str
    param: str | None = None
    headers: Headers = ()

    def document(self) -> Json:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def row_of(error: GatewayError) -> Row:
    return next(ROWS[kind] for kind in type(error).__mro__ if kind in ROWS)


def refusal_of(error: GatewayError) -> Refusal:
    row = row_of(error)
    kind, code = row.kind, error.reason.lower()
    if isinstance(error, UnauthenticatedError):
        code = "invalid_api_key"
    if isinstance(error, QuotaExceededError):
        kind = _LIMIT_KINDS.get(error.limit, "quota")
        code = "quota_exceeded" if error.retry_after_s is None else "rate_limit_exceeded"
    return Refusal(
        row.status,
        _shortened(error.message, _MAX_MESSAGE_CHARS),
        kind,
        code,
        _param(error),
        tuple(_headers(error, row)),
    )


def _param(error: GatewayError) -> str | None:
    if isinstance(error, InvalidRequestError) and error.violations:
        return _shortened(error.violations[0].field, _MAX_PARAM_CHARS) or None
    return "model" if isinstance(error, NotFoundError) else None


def _headers(error: GatewayError, row: Row) -> list[tuple[str, str]]:
    headers = []
    retry_after_s = error.retry_after_s
    if retry_after_s is None and row.status == 503:
        retry_after_s = _RETRY_AFTER_S
    if retry_after_s is not None:
        headers.append(("retry-after", str(max(1, math.ceil(retry_after_s)))))
        headers.append(("retry-after-ms", str(max(1, math.ceil(retry_after_s * 1000)))))
    elif isinstance(error, (*_NOT_AGAIN, QuotaExceededError)):
        headers.append(("x-should-retry", "false"))
    if isinstance(error, UnauthenticatedError):
        headers.append(("www-authenticate", "Bearer"))
    if isinstance(error, MethodNotAllowedError):
        headers.append(("allow", error.allowed))
    return headers


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
