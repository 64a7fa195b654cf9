"""Public prefixes, as operators see them."""

from radixgate.v1 import admin_pb2


class PrefixCalls:
    async def create_public_prefix(
        self, request: admin_pb2.CreatePublicPrefixRequest
    ) -> admin_pb2.CreatePublicPrefixResponse:
        raise NotImplementedError

    async def list_public_prefixes(
        self, request: admin_pb2.ListPublicPrefixesRequest
    ) -> admin_pb2.ListPublicPrefixesResponse:
        raise NotImplementedError

    async def delete_public_prefix(
        self, request: admin_pb2.DeletePublicPrefixRequest
    ) -> admin_pb2.DeletePublicPrefixResponse:
        raise NotImplementedError
