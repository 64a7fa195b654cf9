"""What tenants have used, as Redis has it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from redis.asyncio import Redis

from gateway.identity.reach import StoreReach
from gateway.quota import keys
from gateway.quota.ledger import COUNT_NAMES, Counts

_PURGE = """
if tonumber(redis.call('GET', KEYS[1]) or '-1') < tonumber(ARGV[1]) then
    redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
end
for i = 2, #KEYS do redis.call('UNLINK', KEYS[i]) end
"""
# How long what gateways have yet to settle of a tenant that is gone can take.
_REMEMBER_S = 7 * 86_400
_DAYS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class UsageOf:
    """One day's usage of a model and an adapter ("": none)."""

    day: date
    model: str
    adapter: str
    counts: Counts


class UsageStore:
    """Every method raises UnavailableError when Redis is away or fails."""

    def __init__(self, client: Redis, reach: StoreReach) -> None:
        self._client = client
        self._reach = reach
        self._purge = client.register_script(_PURGE)

    async def between(self, tenant: str, first: date, last: date) -> list[UsageOf]:
        """Return the usage of all days from `first` to `last`, by day, model and adapter."""
        days = [first + timedelta(days=i) for i in range((last - first).days + 1)]
        rows: list[UsageOf] = []
        for start in range(0, len(days), _DAYS_AT_ONCE):
            some = days[start : start + _DAYS_AT_ONCE]
            hashes = await self._reach.call(lambda some=some: self._read(tenant, some))  # type: ignore[misc]
            for day, fields in zip(some, hashes, strict=True):
                rows += _rows(day, fields)
        return rows

    async def purge_usage(self, tenant_id: str, created_at: float) -> None:
        """Remove all usage, and what limits keep, of the tenant that was created then.

        What gateways settle of it later is dropped. Another tenant under the same id is not concerned.
        """
        days: Any = await self._reach.call(lambda: self._client.smembers(keys.usage_days(tenant_id)))
        names = [keys.usage_purged(tenant_id), keys.usage_days(tenant_id), *keys.quota(tenant_id)]
        names += [keys.usage(tenant_id, day) for day in sorted(days)]
        await self._reach.call(lambda: self._purge(keys=names, args=[round(created_at * 1000), _REMEMBER_S]))

    async def _read(self, tenant: str, days: Sequence[date]) -> list[dict[str, str]]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for day in days:
                pipeline.hgetall(keys.usage(tenant, day.strftime("%Y%m%d")))
            found: list[dict[str, str]] = await pipeline.execute()
        return found


def _rows(day: date, fields: dict[str, str]) -> list[UsageOf]:
    by_work: dict[tuple[str, str], dict[str, int]] = {}
    for field, amount in fields.items():
        model, adapter, name = json.loads(field)
        if name in COUNT_NAMES:
            by_work.setdefault((model, adapter), {})[name] = int(amount)
    return [UsageOf(day, *work, Counts(**counts)) for work, counts in sorted(by_work.items())]
