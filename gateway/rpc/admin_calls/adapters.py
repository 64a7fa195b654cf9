"""Registered adapters, as operators see them."""

from radixgate.v1 import admin_pb2


class AdapterCalls:
    async def register_adapter(self, request: admin_pb2.RegisterAdapterRequest) -> admin_pb2.RegisterAdapterResponse:
        raise NotImplementedError

    async def get_registered_adapter(
        self, request: admin_pb2.GetRegisteredAdapterRequest
    ) -> admin_pb2.GetRegisteredAdapterResponse:
        raise NotImplementedError

    async def list_registered_adapters(
        self, request: admin_pb2.ListRegisteredAdaptersRequest
    ) -> admin_pb2.ListRegisteredAdaptersResponse:
        raise NotImplementedError

    async def split_adapter_traffic(
        self, request: admin_pb2.SplitAdapterTrafficRequest
    ) -> admin_pb2.SplitAdapterTrafficResponse:
        raise NotImplementedError

    async def roll_back_adapter(self, request: admin_pb2.RollBackAdapterRequest) -> admin_pb2.RollBackAdapterResponse:
        raise NotImplementedError

    async def unregister_adapter(
        self, request: admin_pb2.UnregisterAdapterRequest
    ) -> admin_pb2.UnregisterAdapterResponse:
        raise NotImplementedError
