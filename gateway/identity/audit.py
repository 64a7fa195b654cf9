"""Who changed what: the audit log, which all gateways share.

    {radixgate}:audit-count       string   numbers the entries of both logs
    {radixgate}:audit             stream   NUMBER-0: of operators, the latest MAX_ENTRIES
    {radixgate}:audit-strangers   stream   NUMBER-0: of callers that nobody knows, the latest MAX_STRANGERS

Two logs, so that strangers, who can call as often as they like, push out no entry of an operator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from redis.asyncio import Redis

from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import PREFIX

MAX_ENTRIES = 10_000
MAX_STRANGERS = 1_000

_COUNT = PREFIX + "audit-count"
_OPERATORS = PREFIX + "audit"
_STRANGERS = PREFIX + "audit-strangers"

# KEYS: count, log. ARGV: how many are kept, then names and values in turn.
_RECORD = """
local id = string.format('%.0f-0', redis.call('INCR', KEYS[1]))
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[1], id, unpack(ARGV, 2))
"""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    at: float  # seconds since the epoch
    operator: str  # "": a caller that nobody knows
    method: str
    target: str
    code: str
    peer: str


@dataclass(frozen=True, slots=True)
class NumberedEntry:
    number: int  # later ones have greater numbers
    entry: AuditEntry


class AuditLog(Protocol):
    """Raises UnavailableError when it cannot be reached."""

    async def record(self, entry: AuditEntry) -> None: ...

    async def before(self, number: int | None, limit: int) -> Sequence[NumberedEntry]:
        """Return at most `limit` entries from before a number, or from the end, newest first."""
        ...


class RedisAuditLog:
    """Implements AuditLog."""

    def __init__(self, client: Redis, reach: StoreReach) -> None:
        self._client = client
        self._reach = reach
        self._record = client.register_script(_RECORD)

    async def record(self, entry: AuditEntry) -> None:
        log, kept = (_OPERATORS, MAX_ENTRIES) if entry.operator else (_STRANGERS, MAX_STRANGERS)
        args: list[str | int] = [kept, "at_ms", round(entry.at * 1000), "operator", entry.operator]
        args += ["method", entry.method, "target", entry.target, "code", entry.code, "peer", entry.peer]
        await self._reach.call(lambda: self._record(keys=[_COUNT, log], args=args))

    async def before(self, number: int | None, limit: int) -> Sequence[NumberedEntry]:
        latest = "+" if number is None else f"({number}-0"

        async def read() -> Any:
            async with self._client.pipeline(transaction=True) as pipeline:
                for log in (_OPERATORS, _STRANGERS):
                    pipeline.xrevrange(log, latest, "-", count=limit)
                return await pipeline.execute()

        rows = await self._reach.call(read)
        entries = [_read(row_id, row) for log in rows for row_id, row in log]
        return sorted(entries, key=lambda each: each.number, reverse=True)[:limit]


def _read(row_id: str, row: Mapping[str, str]) -> NumberedEntry:
    entry = AuditEntry(
        int(row["at_ms"]) / 1000, row["operator"], row["method"], row["target"], row["code"], row["peer"]
    )
    return NumberedEntry(int(row_id.partition("-")[0]), entry)


class MemoryAuditLog:
    """In this process's memory."""

    def __init__(self) -> None:
        self._entries: list[NumberedEntry] = []

    async def record(self, entry: AuditEntry) -> None:
        self._entries.append(NumberedEntry(len(self._entries) + 1, entry))
        for strangers, kept in ((False, MAX_ENTRIES), (True, MAX_STRANGERS)):
            alike = [each for each in self._entries if strangers != bool(each.entry.operator)]
            if len(alike) > kept:
                self._entries.remove(alike[0])

    async def before(self, number: int | None, limit: int) -> Sequence[NumberedEntry]:
        earlier = [each for each in self._entries if number is None or each.number < number]
        return earlier[::-1][:limit]
