"""What checks do as the operator: tenants and prefixes for the time of a check, and their end."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc

from cli.admin_client import AdminClient

Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Guest:
    """A tenant that lives as long as its check."""

    tenant_id: str
    key: str


class Operator:
    """The admin API, as far as checks use it. What is made is removed; what cannot be is told. Raises grpc.RpcError."""

    def __init__(self, client: AdminClient, warn: Warn) -> None:
        self.client = client
        self._warn = warn

    @contextlib.contextmanager
    def guest(self, tenant_id: str) -> Iterator[Guest]:
        self.client.tenants.create(tenant_id, "made by isolation-check")
        try:
            _, secret = self.client.keys.create(tenant_id, "isolation-check")
            yield Guest(tenant_id, secret)
        finally:
            self.tidily(f"tenant {tenant_id}", lambda: self.client.tenants.delete(tenant_id))

    def tidily(self, what: str, remove: Callable[[], object]) -> None:
        """Remove something that a check has made."""
        try:
            remove()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                self._warn(f"{what} is left behind: {error.code().name}: {error.details()}")
