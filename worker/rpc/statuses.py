"""Refusals as gRPC statuses with `google.rpc` details."""

from typing import Final

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

_MAX_MESSAGE_BYTES: Final = 2048  # it travels as a header


def status_of(code: grpc.StatusCode, message: str, field: str = "") -> status_pb2.Status:
    """Return a status; where a `field` of the request is at fault, it is named in the details, too."""
    details = []
    if field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=_shortened(message))
        details.append(any_pb2.Any())
        details[0].Pack(error_details_pb2.BadRequest(field_violations=[violation]))
        message = f"{field}: {message}"
    return status_pb2.Status(code=code.value[0], message=_shortened(message), details=details)


def _shortened(text: str) -> str:
    encoded = text.encode()
    return (
        text if len(encoded) <= _MAX_MESSAGE_BYTES else encoded[: _MAX_MESSAGE_BYTES - 3].decode(errors="ignore") + "…"
    )
