"""What checks do as the operator: tenants and prefixes for the time of a check, and their end."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc

from cli.admin_client import AdminClient
from cli.admin_client.adapter_calls import AdapterName
from cli.admin_client.adapter_values import RegisteredAdapter

Warn = Callable[[str], None]

_PATIENCE_S = 60.0
_POLL_S = 0.1


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

    @contextlib.contextmanager
    def adapter(self, which: AdapterName, folder: str) -> Iterator[str]:
        """Register weights, wait until they are everywhere, and provide their revision."""
        try:
            yield self.register(which, folder)
        finally:
            self.tidily(f"adapter {which.name}", lambda: self.client.adapters.unregister(which))

    def register(self, which: AdapterName, folder: str) -> str:
        """Register weights under a name that may have others, and return their revision when they are everywhere."""
        adapter = self.client.adapters.register(which, folder)
        deadline = time.monotonic() + _PATIENCE_S
        while not _is_everywhere(adapter) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            adapter = self.client.adapters.get(which)
        return max(adapter.revisions, key=lambda revision: revision.traffic_percent).revision

    def tidily(self, what: str, remove: Callable[[], object]) -> None:
        """Remove something that a check has made."""
        try:
            remove()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                self._warn(f"{what} is left behind: {error.code().name}: {error.details()}")


def _is_everywhere(adapter: RegisteredAdapter) -> bool:
    (*_, newest) = adapter.revisions
    places = [place for place in adapter.placements if place.revision == newest.revision]
    return bool(places) and all(place.loaded for place in places)
