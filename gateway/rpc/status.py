"""From the gateway's errors to gRPC statuses with `google.rpc` details: the one place where they are translated."""

from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from gateway.errors import (
    AlreadyExistsError,
    CancelledRequestError,
    DeadlineExceededError,
    GatewayError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnauthenticatedError,
    UnavailableError,
)

DOMAIN = "radixgate"
DETAILS_KEY = "grpc-status-details-bin"

_CODES: dict[type[GatewayError], StatusCode] = {
    UnauthenticatedError: StatusCode.UNAUTHENTICATED,
    InvalidRequestError: StatusCode.INVALID_ARGUMENT,
    NotFoundError: StatusCode.NOT_FOUND,
    AlreadyExistsError: StatusCode.ALREADY_EXISTS,
    UnavailableError: StatusCode.UNAVAILABLE,
    OverloadedError: StatusCode.RESOURCE_EXHAUSTED,
    DeadlineExceededError: StatusCode.DEADLINE_EXCEEDED,
    CancelledRequestError: StatusCode.CANCELLED,
}

# gRPC sends both message and details as headers, which peers commonly limit to 8 kB in all.
_MAX_MESSAGE_CHARS = 512
_MAX_VIOLATIONS = 24
_MAX_TEXT_CHARS = 160


def code_of(error: GatewayError) -> StatusCode:
    return _CODES.get(type(error), StatusCode.INTERNAL)


def status_of(error: GatewayError) -> status_pb2.Status:
    """Return the full status: code, message, ErrorInfo, and BadRequest or RetryInfo where they apply."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    details: list[message.Message] = [info]
    if isinstance(error, InvalidRequestError):
        details.append(_bad_request(error))
    if isinstance(error, UnavailableError) and error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return status_pb2.Status(
        code=code_of(error).value[0],
        message=_shortened(error.message, _MAX_MESSAGE_CHARS),
        details=[_packed(detail) for detail in details],
    )


def _bad_request(error: InvalidRequestError) -> error_details_pb2.BadRequest:
    shown = error.violations[:_MAX_VIOLATIONS]
    bad_request = error_details_pb2.BadRequest(
        field_violations=[
            error_details_pb2.BadRequest.FieldViolation(
                field=_shortened(violation.field, _MAX_TEXT_CHARS),
                description=_shortened(violation.description, _MAX_TEXT_CHARS),
            )
            for violation in shown
        ]
    )
    hidden = len(error.violations) - len(shown)
    if hidden:
        bad_request.field_violations.add(field="", description=f"and {hidden} more")
    return bad_request


def _packed(detail: message.Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def _shortened(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"
