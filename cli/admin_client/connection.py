"""One connection of an operator: a stub whose calls carry the admin token and end in time."""

from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from radixgate.v1 import admin_pb2_grpc

TIMEOUT_S = 30.0
PAGE_SIZE = 1000

Response = TypeVar("Response")


class Connection:
    """Makes calls of AdminService. They raise grpc.RpcError."""

    def __init__(self, channel: grpc.Channel, token: str) -> None:
        self.stub = admin_pb2_grpc.AdminServiceStub(channel)
        self._metadata = (("authorization", f"Bearer {token}"),)

    def call(self, method: Callable[..., Response], request: Any, timeout_s: float = TIMEOUT_S) -> Response:
        return method(request, timeout=timeout_s, metadata=self._metadata)
