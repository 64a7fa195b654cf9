from typing import Any

import grpc
import pytest

from cli.rpc_errors import explain
from gateway.errors import GatewayError, UnavailableError
from gateway.rpc.status import DETAILS_KEY, code_of, status_of


class Refusal(grpc.RpcError):
    """What a client sees of a gateway's error, as far as `explain` looks."""

    def __init__(self, error: GatewayError) -> None:
        self._status = status_of(error)
        self._code = code_of(error)

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return str(self._status.message)

    def trailing_metadata(self) -> Any:
        return ((DETAILS_KEY, self._status.SerializeToString()),)


class NotReached(grpc.RpcError):
    """What a client sees where no server has answered."""

    def __init__(self, told: str) -> None:
        self._told = told

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self._told

    def trailing_metadata(self) -> Any:
        return None


@pytest.mark.parametrize(
    ("told", "hint"),
    [
        ("ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused", "is RadixGate running there?"),
        ("Socket closed", "--tls-cert for one that asks for certificates"),
        ("OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: unable to get local issuer", "--tls-ca names others"),
        ("OPENSSL_internal:WRONG_VERSION_NUMBER: Invalid", "leave out --tls"),
        ("Peer name h is not in peer certificate", "is for another name"),
        ("errors resolving h: [field:hostname lookup error]", "must read HOST:PORT"),
    ],
)
def test_who_was_not_reached_gets_a_hint_of_why(told: str, hint: str) -> None:
    last = explain(NotReached(told), "h:1", "").splitlines()[-1]
    assert last.startswith("(h:1: ")
    assert hint in last


def test_a_time_to_wait_is_rounded_up() -> None:
    assert "try again in 60.1 s" in explain(Refusal(UnavailableError("no", retry_after_s=60.0694)), "h:1", "")


def test_a_server_that_answered_is_not_suspected_to_be_away() -> None:
    error = Refusal(UnavailableError("no worker is connected", retry_after_s=1.5))
    assert explain(error, "h:1", "") == "UNAVAILABLE: no worker is connected\n  try again in 1.5 s"
