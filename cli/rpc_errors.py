"""Says what went wrong with an RPC, to a person: status, message, and the details that name field and limit."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import click
import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

_HINTS = {
    grpc.StatusCode.UNAVAILABLE: "is RadixGate running there? `radixgate serve` starts it",
    grpc.StatusCode.UNAUTHENTICATED: "keys come from `radixgate key create`, and from `radixgate serve --demo`",
}


@contextmanager
def rpc_errors_told(target: str) -> Iterator[None]:
    """Turn an RPC's failure into a message and exit status 1."""
    try:
        yield
    except grpc.RpcError as error:
        raise click.ClickException(explain(error, target)) from error


def explain(error: grpc.RpcError, target: str) -> str:
    """Return a message of one or more lines."""
    code = error.code()
    lines = [f"{code.name}: {error.details()}", *_detail_lines(error)]
    if hint := _HINTS.get(code):
        lines.append(f"({target}: {hint})")
    return "\n".join(lines)


def _detail_lines(error: grpc.RpcError) -> Iterator[str]:
    # Errors of a call are both: grpc.RpcError and grpc.Call.
    status = rpc_status.from_call(cast("grpc.Call", error))
    for detail in status.details if status is not None else ():
        bad_request, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(bad_request):
            for violation in bad_request.field_violations:
                yield f"  {violation.field}: {violation.description}"
        elif detail.Unpack(retry):
            yield f"  try again in {retry.retry_delay.ToTimedelta().total_seconds():g} s"
