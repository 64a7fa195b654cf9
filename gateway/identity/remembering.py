"""Known tenants go on while Redis is away."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.errors import UnavailableError
from gateway.identity.directory import Directory, KnownKey
from gateway.identity.stores import KeyRecord, Tenant

MAX_REMEMBERED = 50_000  # of keys, and of tenants

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class _Read(Generic[ValueT]):
    value: ValueT
    at: float


class _Memory(Generic[ValueT]):
    """The last values that were read, by id. Invariant: never more than `limit`; the longest unused go first."""

    def __init__(self, limit: int, max_stale_s: float) -> None:
        self._limit = limit
        self._max_stale_s = max_stale_s
        self._read: OrderedDict[str, _Read[ValueT]] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._read

    def __len__(self) -> int:
        return len(self._read)

    def put(self, name: str, value: ValueT, now: float) -> None:
        self._read[name] = _Read(value, now)
        self._read.move_to_end(name)
        if len(self._read) > self._limit:
            self._read.popitem(last=False)

    def get(self, name: str, now: float) -> ValueT | None:
        found = self._read.get(name)
        return found.value if found is not None and now - found.at <= self._max_stale_s else None

    def forget(self, name: str) -> None:
        self._read.pop(name, None)

    def clear(self) -> None:
        self._read.clear()


class RememberingDirectory:
    """Asks another directory for every call, and remembers what it said for when that cannot be reached.

    Never the other way round: while Redis answers, what it says holds at once. What is unknown or revoked is not
    remembered, so strangers take no room.
    """

    def __init__(
        self,
        inner: Directory,
        max_stale_s: float,
        *,
        max_remembered: int = MAX_REMEMBERED,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """What was read longer than `max_stale_s` ago is no longer known."""
        self._inner = inner
        self._now = now
        self._keys: _Memory[KeyRecord] = _Memory(max_remembered, max_stale_s)
        self._tenants: _Memory[Tenant] = _Memory(max_remembered, max_stale_s)

    def __len__(self) -> int:
        """Return how many keys and tenants are remembered."""
        return len(self._keys) + len(self._tenants)

    async def find_key(self, key_id: str) -> KnownKey | None:
        try:
            return await self.ask_for_key(key_id)
        except UnavailableError:
            now = self._now()
            record = self._keys.get(key_id, now)
            tenant = self._tenants.get(record.api_key.tenant_id, now) if record else None
            if record is None or tenant is None:
                raise
            return KnownKey(record, tenant)

    async def find_tenant(self, tenant_id: str) -> Tenant | None:
        try:
            return await self.ask_for_tenant(tenant_id)
        except UnavailableError:
            remembered = self._tenants.get(tenant_id, self._now())
            if remembered is None:
                raise
            return remembered

    async def ask_for_key(self, key_id: str) -> KnownKey | None:
        """Like `find_key`, but raises UnavailableError for what can't be asked for."""
        found = await self._inner.find_key(key_id)
        if found is None or found.key.api_key.revoked_at is not None:
            self._keys.forget(key_id)
        else:
            self._keys.put(key_id, found.key, self._now())
            self._tenants.put(found.tenant.tenant_id, found.tenant, self._now())
        return found

    async def ask_for_tenant(self, tenant_id: str) -> Tenant | None:
        """Like `find_tenant`, but raises UnavailableError for what can't be asked for."""
        found = await self._inner.find_tenant(tenant_id)
        if found is None:
            self._tenants.forget(tenant_id)
        else:
            self._tenants.put(tenant_id, found, self._now())
        return found

    def remembered_tenant(self, tenant_id: str) -> Tenant | None:
        """Return what was read last, by whomever, without asking for it."""
        return self._tenants.get(tenant_id, self._now())

    def remembers_key(self, key_id: str) -> bool:
        return key_id in self._keys

    def remembers_tenant(self, tenant_id: str) -> bool:
        return tenant_id in self._tenants

    def forget_all(self) -> None:
        self._keys.clear()
        self._tenants.clear()
