"""From the gateway's errors to gRPC statuses with `google.rpc` details: the one place where they are translated."""

from google.protobuf import any_pb2, duration_pb2, message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from gateway.errors import (
    AdapterChangedError,
    AlreadyExistsError,
    CancelledRequestError,
    DeadlineExceededError,
    FailedPreconditionError,
    GatewayError,
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

DOMAIN = "radixgate"
DETAILS_KEY = "grpc-status-details-bin"

_CODES: dict[type[GatewayError], StatusCode] = {
    UnauthenticatedError: StatusCode.UNAUTHENTICATED,
    PermissionDeniedError: StatusCode.PERMISSION_DENIED,
    InvalidRequestError: StatusCode.INVALID_ARGUMENT,
    NotFoundError: StatusCode.NOT_FOUND,
    AlreadyExistsError: StatusCode.ALREADY_EXISTS,
    FailedPreconditionError: StatusCode.FAILED_PRECONDITION,
    UnavailableError: StatusCode.UNAVAILABLE,
    AdapterChangedError: StatusCode.UNAVAILABLE,
    NoWorkerError: StatusCode.UNAVAILABLE,
    StreamLostError: StatusCode.UNAVAILABLE,
    OverloadedError: StatusCode.RESOURCE_EXHAUSTED,
    QuotaExceededError: StatusCode.RESOURCE_EXHAUSTED,
    DeadlineExceededError: StatusCode.DEADLINE_EXCEEDED,
    CancelledRequestError: StatusCode.CANCELLED,
}

# gRPC sends message and details as headers, percent- and base64-encoded, and peers may drop what is over 8 kB in all.
_MAX_MESSAGE_BYTES = 512
_MAX_TEXT_BYTES = 256
_MAX_VIOLATIONS_BYTES = 3072


def code_of(error: GatewayError) -> StatusCode:
    return _CODES.get(type(error), StatusCode.INTERNAL)


def status_of(error: GatewayError) -> status_pb2.Status:
    """Return the full status: code, message, ErrorInfo, and BadRequest, ResourceInfo, QuotaFailure or RetryInfo where
    they apply.
    """
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    details: list[message.Message] = [info]
    if isinstance(error, InvalidRequestError):
        details.append(_bad_request(error))
    if isinstance(error, NotFoundError):
        details.append(error_details_pb2.ResourceInfo(resource_type=error.kind, resource_name=error.name))
    if isinstance(error, QuotaExceededError):
        violation = error_details_pb2.QuotaFailure.Violation(subject=error.limit, description=error.message)
        details.append(error_details_pb2.QuotaFailure(violations=[violation]))
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return status_pb2.Status(
        code=code_of(error).value[0],
        message=_shortened(error.message, _MAX_MESSAGE_BYTES),
        details=[_packed(detail) for detail in details],
    )


def _bad_request(error: InvalidRequestError) -> error_details_pb2.BadRequest:
    bad_request = error_details_pb2.BadRequest()
    for shown, violation in enumerate(error.violations):
        if bad_request.ByteSize() > _MAX_VIOLATIONS_BYTES:
            bad_request.field_violations.add(description=f"and {len(error.violations) - shown} more violations")
            break
        bad_request.field_violations.add(
            field=_shortened(violation.field, _MAX_TEXT_BYTES),
            description=_shortened(violation.description, _MAX_TEXT_BYTES),
        )
    return bad_request


def _packed(detail: message.Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def _shortened(text: str, max_bytes: int) -> str:
    encoded = text.encode()
    return text if len(encoded) <= max_bytes else encoded[: max_bytes - 3].decode(errors="ignore") + "…"
