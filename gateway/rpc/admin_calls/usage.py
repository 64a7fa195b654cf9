"""Usage, as operators see it."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from typing import Protocol

from gateway.errors import NotFoundError, Violation
from gateway.identity.stores import Tenant
from gateway.quota.ledger import Counts
from gateway.quota.usage import UsageOf
from gateway.rpc.admin_calls.messages import refuse
from radixgate.v1 import admin_pb2

MAX_DAYS = 366

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class Tenants(Protocol):
    async def get(self, tenant_id: str) -> Tenant | None: ...


class Usage(Protocol):
    async def between(self, tenant: str, first: date, last: date) -> Sequence[UsageOf]: ...


class UsageCalls:
    def __init__(self, tenants: Tenants, usage: Usage) -> None:
        self._tenants = tenants
        self._usage = usage

    async def get_usage(self, request: admin_pb2.GetUsageRequest) -> admin_pb2.GetUsageResponse:
        first, last = _days(request, datetime.now(UTC).date())
        if await self._tenants.get(request.tenant_id) is None:
            raise NotFoundError("tenant", request.tenant_id)
        rows = await self._usage.between(request.tenant_id, first, last)
        return admin_pb2.GetUsageResponse(
            rows=[
                admin_pb2.UsageRow(
                    day=row.day.isoformat(), model=row.model, adapter=row.adapter, counts=_message(row.counts)
                )
                for row in rows
            ],
            total=_message(sum((row.counts for row in rows), Counts())),
        )


def _days(request: admin_pb2.GetUsageRequest, today: date) -> tuple[date, date]:
    """Return the first and the last day. Raises InvalidRequestError."""
    violations: list[Violation] = []
    last = _day("last_day", request.last_day, today, violations)
    # Without a first day: the last one alone.
    first = _day("first_day", request.first_day, last, violations)
    refuse(violations)
    if first > last:
        refuse([Violation("first_day", f"{first} is behind the last day, {last}")])
    if (days := (last - first).days + 1) > MAX_DAYS:
        refuse([Violation("first_day", f"{first} to {last} are {days} days; at most {MAX_DAYS} are allowed")])
    return first, last


def _day(field: str, text: str, default: date, violations: list[Violation]) -> date:
    if not text:
        return default
    if _DAY.fullmatch(text):
        try:
            return date.fromisoformat(text)
        except ValueError:
            pass
    shown = text if len(text) <= 32 else text[:32] + "…"
    violations.append(Violation(field, f"{shown!r} is not a day that reads YYYY-MM-DD, as in 2026-11-30"))
    return default


def _message(counts: Counts) -> admin_pb2.UsageCounts:
    return admin_pb2.UsageCounts(**asdict(counts))
