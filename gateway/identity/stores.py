"""What is known about tenants and their keys, and the two stores that keep it.

Times are seconds since the epoch and come from the caller.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from gateway.errors import FailedPreconditionError
from gateway.policy import TenantPolicy


class TenantState(Enum):
    ACTIVE = "active"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True)
class Tenant:
    tenant_id: str
    display_name: str
    created_at: float
    cache_version: int  # its own; see `effective_cache_version`
    state: TenantState = TenantState.ACTIVE
    policy: TenantPolicy = field(default_factory=TenantPolicy)  # what is set for it
    adapter_versions: Mapping[str, int] = field(default_factory=dict)  # bumps of single adapters

    def effective_cache_version(self, adapter: str) -> int:
        """Return the version of an adapter ("" is the base model)."""
        return self.cache_version + self.adapter_versions.get(adapter, 0)


@dataclass(frozen=True, slots=True)
class TenantChange:
    """What to change of a tenant; the rest stays as it is."""

    display_name: str | None = None
    # Fields of the policy by name. None, and no names, unset one.
    policy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key without its secret."""

    key_id: str
    tenant_id: str
    display_name: str
    created_at: float
    revoked_at: float | None = None
    expires_at: float | None = None
    models: tuple[str, ...] = ()  # that requests with it may use; none named: all of the tenant
    adapters: tuple[str, ...] = ()
    replaces: str = ""  # the id of the key that it was made to replace


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is kept of a key: enough to recognise its secret, not enough to know it."""

    api_key: ApiKey
    secret_hash: bytes


def first_cache_version(created_at: float, highest_before: int = 0) -> int:
    """Return the cache version a new tenant starts with.

    Its time of creation in milliseconds and not 0: a tenant that is made anew under an old id must not find the
    cache of its predecessor, even when the store has forgotten it. While it remembers, `highest_before` is the highest
    that was in use under the id.
    """
    return max(int(created_at * 1000), highest_before + 1)


def key_revoked(key_id: str) -> FailedPreconditionError:
    return FailedPreconditionError(f"key {key_id!r} is revoked: make a new one instead", reason="KEY_REVOKED")


class TenantStore(Protocol):
    """Tenants and their cache versions. Every method raises UnavailableError when the store cannot be reached.

    The effective version of an adapter is the tenant's own plus the adapter's, and every bump adds one: whatever is
    bumped, the effective versions below it only ever grow, so no old value returns. Nor does one when a tenant is
    deleted and made anew.
    """

    async def create(
        self, tenant_id: str, display_name: str, now: float, policy: TenantPolicy | None = None, mark: str = ""
    ) -> Tenant:
        """Raises AlreadyExistsError, unless the tenant there was made with the same `mark`: then that is the answer."""
        ...

    async def get(self, tenant_id: str) -> Tenant | None: ...

    async def list_after(self, tenant_id: str, limit: int) -> Sequence[Tenant]:
        """Return at most `limit` tenants in order of id, from the first behind `tenant_id` ("": from the start)."""
        ...

    async def update(self, tenant_id: str, change: TenantChange) -> Tenant | None:
        """Make all of a change at once. None and no change without such a tenant."""
        ...

    async def set_state(self, tenant_id: str, state: TenantState) -> Tenant | None: ...

    async def delete(self, tenant_id: str, created_at: float | None = None) -> int | None:
        """Remove a tenant with all its keys, and return how many those were. None without such a tenant.

        With `created_at` only the one that was created then, and none that has been made under its id since.
        """
        ...

    async def cache_version(self, tenant_id: str, adapter: str) -> int | None:
        """Return the effective version of an adapter ("" is the base model); None without such a tenant."""
        ...

    async def bump_cache_version(self, tenant_id: str, adapter: str) -> int | None:
        """Raise the version of one adapter, or of everything for "", in one atomic write.

        Return the effective version afterwards, or None and change nothing without such a tenant.
        """
        ...


class KeyStore(Protocol):
    """API keys. Every method raises UnavailableError when the store cannot be reached."""

    async def add(self, record: KeyRecord) -> None:
        """Adding what is there already changes nothing.

        Raises NotFoundError when the tenant does not exist, AlreadyExistsError for a key id that is another key's.
        """
        ...

    async def find(self, key_id: str) -> KeyRecord | None: ...

    async def list_after(self, tenant_id: str, key_id: str, limit: int) -> Sequence[ApiKey]:
        """Return at most `limit` of the tenant's keys, from the first behind `key_id` ("": from the start).

        Revoked ones are included. Oldest first, those of one moment as they were added. None behind a key that is not
        the tenant's.
        """
        ...

    async def rotate(self, record: KeyRecord, expires_at: float) -> ApiKey:
        """Add a key, and let the one that it replaces expire then if it would have lived longer, in one atomic write.

        Return the key that is replaced. Like `add`, without effect the second time. Raises NotFoundError without the
        key that is replaced, FailedPreconditionError when that is revoked, and AlreadyExistsError like `add`.
        """
        ...

    async def revoke(self, key_id: str, now: float) -> ApiKey | None:
        """Revoke a key; from the moment this returns `find` shows it as revoked, to every gateway.

        Revoking again changes nothing: the first time stands. None without such a key.
        """
        ...
