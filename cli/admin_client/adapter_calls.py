"""The admin API's calls about adapters. A name may mean several: what else is known of one finds it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from cli.admin_client.adapter_values import RegisteredAdapter
from cli.admin_client.connection import Connection
from cli.admin_client.values import duration_of
from radixgate.v1 import admin_pb2

_LOAD_TIMEOUT_S = 900.0  # workers may wait until the same adapter, on its way out, is gone
_ANSWER_TIMEOUT_S = 60.0  # beyond the grace that was given
_DEFAULT_GRACE_S = 30.0


@dataclass(frozen=True, slots=True)
class AdapterName:
    """Which adapter is meant."""

    name: str
    model: str = ""  # may be left empty where exactly one model is served
    tenants: Sequence[str] = ()  # as it was registered with


class AdapterCalls:
    def __init__(self, connection: Connection) -> None:
        self._call, self._stub = connection.call, connection.stub

    def register(
        self, which: AdapterName, path: str, traffic_percent: int | None = None, request_id: str = ""
    ) -> RegisteredAdapter:
        request = admin_pb2.RegisterAdapterRequest(
            name=which.name,
            model=which.model,
            path=path,
            tenants=which.tenants,
            traffic_percent=traffic_percent,
            request_id=request_id,
        )
        return RegisteredAdapter.of(self._call(self._stub.RegisterAdapter, request, _LOAD_TIMEOUT_S).adapter)

    def get(self, which: AdapterName) -> RegisteredAdapter:
        request = admin_pb2.GetRegisteredAdapterRequest(name=which.name, model=which.model, tenants=which.tenants)
        return RegisteredAdapter.of(self._call(self._stub.GetRegisteredAdapter, request).adapter)

    def list(self) -> list[RegisteredAdapter]:
        answer = self._call(self._stub.ListRegisteredAdapters, admin_pb2.ListRegisteredAdaptersRequest())
        return [RegisteredAdapter.of(message) for message in answer.adapters]

    def split_traffic(self, which: AdapterName, revision: str, traffic_percent: int) -> RegisteredAdapter:
        request = admin_pb2.SplitAdapterTrafficRequest(
            name=which.name,
            model=which.model,
            tenants=which.tenants,
            revision=revision,
            traffic_percent=traffic_percent,
        )
        return RegisteredAdapter.of(self._call(self._stub.SplitAdapterTraffic, request).adapter)

    def roll_back(self, which: AdapterName) -> RegisteredAdapter:
        request = admin_pb2.RollBackAdapterRequest(name=which.name, model=which.model, tenants=which.tenants)
        return RegisteredAdapter.of(self._call(self._stub.RollBackAdapter, request, _LOAD_TIMEOUT_S).adapter)

    def unregister(self, which: AdapterName, grace: timedelta | None = None) -> int:
        """Return how many sequences failed because the grace was over."""
        request = admin_pb2.UnregisterAdapterRequest(
            name=which.name, model=which.model, tenants=which.tenants, grace=duration_of(grace)
        )
        grace_s = _DEFAULT_GRACE_S if grace is None else grace.total_seconds()
        return self._call(self._stub.UnregisterAdapter, request, grace_s + _ANSWER_TIMEOUT_S).failed_sequences
