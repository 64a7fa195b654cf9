"""The audit log, as operators see them."""

from radixgate.v1 import admin_pb2


class AuditCalls:
    async def list_audit_entries(
        self, request: admin_pb2.ListAuditEntriesRequest
    ) -> admin_pb2.ListAuditEntriesResponse:
        raise NotImplementedError
