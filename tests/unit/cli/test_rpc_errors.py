from typing import Any

import grpc

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


def test_a_server_that_answered_is_not_suspected_to_be_away() -> None:
    error = Refusal(UnavailableError("no worker is connected", retry_after_s=1.5))
    assert explain(error, "h:1", "") == "UNAVAILABLE: no worker is connected\n  try again in 1.5 s"
