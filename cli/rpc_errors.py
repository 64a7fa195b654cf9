"""Says what went wrong with an RPC, to a person: status, message, and the details that name field and limit."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import click
import grpc
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2
from grpc_status import rpc_status

TENANT_HINT = "keys come from `radixgate key create`, and from `radixgate serve --demo`"
OPERATOR_HINT = (
    "the admin token comes from --admin-token-file, RADIXGATE_ADMIN_TOKEN, the file of --config, "
    "or what `radixgate serve` left for its user"
)
_AWAY_HINT = (
    "is RadixGate running there? `radixgate serve` starts it; --tls-ca is for one that speaks TLS, "
    "and --tls-cert for one that asks for certificates"
)
# By what gRPC says where it found no server to speak to.
_CONNECTION_HINTS = {
    "CERTIFICATE_VERIFY_FAILED": "none of the authorities that are trusted vouches for it; --tls-ca names others",
    "not in peer certificate": "its certificate is for another name; --target must give one that is in it",
    "WRONG_VERSION_NUMBER": "it speaks no TLS; leave out --tls, --tls-ca and --tls-cert",
    "errors resolving": "no address is known for it; it must read HOST:PORT",
}


@contextmanager
def rpc_errors_told(target: str, credential_hint: str) -> Iterator[None]:
    """Turn an RPC's failure into a message and exit status 1."""
    try:
        yield
    except grpc.RpcError as error:
        raise click.ClickException(explain(error, target, credential_hint)) from error


def explain(error: grpc.RpcError, target: str, credential_hint: str) -> str:
    """Return a message of one or more lines. `credential_hint` says where the credential of the call comes from."""
    code = error.code()
    # Errors of a call are both: grpc.RpcError and grpc.Call. Only a server that answered gives details.
    status = rpc_status.from_call(cast("grpc.Call", error))
    details = () if status is None else tuple(status.details)
    violations = list(_violations(details))
    # The message already holds what there is one of.
    lines = [f"{code.name}:", *violations] if len(violations) > 1 else [f"{code.name}: {error.details()}"]
    lines += _retry(details)
    if code is grpc.StatusCode.UNAVAILABLE and not details:
        lines.append(f"({target}: {_connection_hint(error.details() or '')})")
    elif code is grpc.StatusCode.UNAUTHENTICATED:
        lines.append(f"({target}: {credential_hint})")
    return "\n".join(lines)


def _connection_hint(told: str) -> str:
    return next((hint for words, hint in _CONNECTION_HINTS.items() if words in told), _AWAY_HINT)


def _violations(details: Sequence[Any]) -> Iterator[str]:
    for detail in details:
        bad_request = error_details_pb2.BadRequest()
        if detail.Unpack(bad_request):
            for violation in bad_request.field_violations:
                yield (
                    f"  {violation.field}: {violation.description}" if violation.field else f"  {violation.description}"
                )


def _retry(details: Sequence[Any]) -> Iterator[str]:
    for detail in details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            yield f"  try again in {_rounded_up(retry.retry_delay.ToTimedelta().total_seconds()):g} s"


def _rounded_up(seconds: float) -> float:
    """To tenths, so that whoever waits for so long has waited long enough."""
    return math.ceil(seconds * 10) / 10
