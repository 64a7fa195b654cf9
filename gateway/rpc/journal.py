"""What of the admin API's calls goes into the audit log: changes, and callers that are refused. Logged here, too."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from google.protobuf.message import Message

from gateway.errors import UnavailableError
from gateway.identity.audit import AuditEntry, AuditLog
from gateway.identity.credentials import without_secrets

_log = structlog.get_logger(__name__)

_MAX_TARGET_CHARS = 160
_MAX_VALUE_CHARS = 64
_READS = ("Get", "List")
_REFUSALS = ("UNAUTHENTICATED", "PERMISSION_DENIED")
# Fields that say what a request is about, in the order in which they are told.
_SUBJECTS = {"tenant_id": "tenant", "key_id": "key", "name": "adapter", "adapter": "adapter", "prefix_id": "prefix"}


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that has been answered, or is about to be."""

    method: str  # "Service/Method"
    request: Any
    operator: str  # "": nobody was recognised
    code: str  # name of the gRPC status
    peer: str


class AdminJournal:
    """Keeps entries. What cannot be written to the shared log is in the gateway's own all the same."""

    def __init__(self, log: AuditLog, now: Callable[[], float] = time.time) -> None:
        self._audit = log
        self._now = now
        self._writes: set[asyncio.Task[None]] = set()

    async def ended(self, call: EndedCall) -> None:
        """Return once the entry is written, or cannot be. It is written also when the caller has gone meanwhile."""
        method = call.method.rpartition("/")[2]
        if method.startswith(_READS) and call.code not in _REFUSALS:
            return
        entry = AuditEntry(self._now(), call.operator, method, target_of(call.request), call.code, call.peer)
        _log.info(
            "audit",
            operator=entry.operator,
            method=entry.method,
            target=entry.target,
            code=entry.code,
            peer=entry.peer,
        )
        write = asyncio.create_task(self._write(entry))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        await asyncio.shield(write)

    async def close(self) -> None:
        """Wait for what is being written."""
        await asyncio.gather(*self._writes, return_exceptions=True)

    async def _write(self, entry: AuditEntry) -> None:
        try:
            await self._audit.record(entry)
        except UnavailableError:
            _log.warning("an audit entry is in this log only", method=entry.method)


def target_of(request: Any) -> str:
    """Return what a request is about, such as `tenant acme`. What its caller wrote is shortened, on one line."""
    if isinstance(request, Message) and "tenant" in request.DESCRIPTOR.fields_by_name:
        request = getattr(request, "tenant")  # noqa: B009 - of messages of many kinds
    told = []
    for field, kind in _SUBJECTS.items():
        value = getattr(request, field, "")
        if isinstance(value, str) and value:
            shown = "".join(char if char.isprintable() else "?" for char in without_secrets(value)[:_MAX_VALUE_CHARS])
            told.append(f"{kind} {shown}")
    return " ".join(told)[:_MAX_TARGET_CHARS]
