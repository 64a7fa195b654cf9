"""Usage, as operators see them."""

from radixgate.v1 import admin_pb2


class UsageCalls:
    async def get_usage(self, request: admin_pb2.GetUsageRequest) -> admin_pb2.GetUsageResponse:
        raise NotImplementedError
