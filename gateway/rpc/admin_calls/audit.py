"""The audit log, as operators see it."""

import re

from gateway.identity.audit import AuditLog
from gateway.rpc.admin_calls.messages import page_size_of, page_token, read_page_token, timestamp
from radixgate.v1 import admin_pb2

_NUMBER = re.compile(r"[1-9][0-9]{0,17}")


class AuditCalls:
    def __init__(self, log: AuditLog) -> None:
        self._log = log

    async def list_audit_entries(
        self, request: admin_pb2.ListAuditEntriesRequest
    ) -> admin_pb2.ListAuditEntriesResponse:
        page_size = page_size_of(request.page_size)
        before = read_page_token(request.page_token, _is_number, "ListAuditEntries")
        # One more than asked for tells whether there is a next page.
        entries = await self._log.before(int(before) if before else None, page_size + 1)
        page = entries[:page_size]
        return admin_pb2.ListAuditEntriesResponse(
            entries=[
                admin_pb2.AuditEntry(
                    time=timestamp(each.entry.at),
                    operator=each.entry.operator,
                    method=each.entry.method,
                    target=each.entry.target,
                    code=each.entry.code,
                    peer=each.entry.peer,
                )
                for each in page
            ],
            next_page_token=page_token(str(page[-1].number)) if len(entries) > page_size else "",
        )


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None
