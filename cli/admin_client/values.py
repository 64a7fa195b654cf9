"""What the admin API speaks of, as values that print well: absence is None, times are RFC 3339, durations seconds."""

from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from radixgate.v1 import admin_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a tenant may do and what it is due, by the names of the API but for `max_deadline_s`. None: not set."""

    weight: float | None = None
    priority: int | None = None
    cache_floor_tokens: int | None = None
    max_deadline_s: float | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent_requests: int | None = None
    max_queued_requests: int | None = None
    models: tuple[str, ...] = ()  # none named: all
    adapters: tuple[str, ...] = ()

    @classmethod
    def of(cls, message: admin_pb2.TenantPolicy) -> Self:
        values: dict[str, Any] = {name: _set_or_none(message, name) for name in SCALARS}
        if message.HasField("max_deadline"):
            values["max_deadline_s"] = message.max_deadline.ToTimedelta().total_seconds()
        return cls(models=tuple(message.models), adapters=tuple(message.adapters), **values)

    def message(self) -> admin_pb2.TenantPolicy:
        message = admin_pb2.TenantPolicy(
            models=self.models, adapters=self.adapters, **{name: getattr(self, name) for name in SCALARS}
        )
        if self.max_deadline_s is not None:
            message.max_deadline.FromNanoseconds(round(self.max_deadline_s * 1e9))
        return message

    def names_set(self) -> list[str]:
        """Return the names of the API's fields that say something."""
        names = (each.name for each in fields(self) if getattr(self, each.name) not in (None, ()))
        return [name.removesuffix("_s") if name == "max_deadline_s" else name for name in names]


SCALARS = tuple(each.name for each in fields(Policy) if each.name not in ("max_deadline_s", "models", "adapters"))
# By the names of the API.
POLICY_FIELDS = (*SCALARS, "max_deadline", "models", "adapters")


@dataclass(frozen=True, slots=True)
class Tenant:
    tenant_id: str
    display_name: str
    create_time: str
    cache_version: int
    state: str  # active, suspended
    policy: Policy  # as it is set
    effective_policy: Policy  # as it holds

    @classmethod
    def of(cls, message: admin_pb2.Tenant) -> Self:
        return cls(
            message.tenant_id,
            message.display_name,
            time_of(message.create_time),
            message.cache_version,
            admin_pb2.TenantState.Name(message.state).removeprefix("TENANT_STATE_").lower(),
            Policy.of(message.policy),
            Policy.of(message.effective_policy),
        )


@dataclass(frozen=True, slots=True)
class Key:
    key_id: str
    tenant_id: str
    display_name: str
    create_time: str
    revoke_time: str | None
    expire_time: str | None
    models: tuple[str, ...]  # none named: all of the tenant
    adapters: tuple[str, ...]
    replaces: str | None

    @classmethod
    def of(cls, message: admin_pb2.ApiKey) -> Self:
        return cls(
            message.key_id,
            message.tenant_id,
            message.display_name,
            time_of(message.create_time),
            time_of(message.revoke_time) if message.HasField("revoke_time") else None,
            time_of(message.expire_time) if message.HasField("expire_time") else None,
            tuple(message.models),
            tuple(message.adapters),
            message.replaces or None,
        )


@dataclass(frozen=True, slots=True)
class Purged:
    """What was freed."""

    device_tokens: int
    host_tokens: int
    namespaces: int
    unreachable_workers: tuple[str, ...]

    @classmethod
    def of(cls, message: admin_pb2.PurgedCache) -> Self:
        return cls(message.device_tokens, message.host_tokens, message.namespaces, tuple(message.unreachable_workers))


@dataclass(frozen=True, slots=True)
class DeletedTenant:
    tenant_id: str
    deleted_api_keys: int
    purged: Purged


@dataclass(frozen=True, slots=True)
class PublicPrefix:
    prefix_id: str
    display_name: str
    model: str
    adapter: str
    num_tokens: int
    create_time: str

    @classmethod
    def of(cls, message: admin_pb2.PublicPrefix) -> Self:
        return cls(
            message.prefix_id,
            message.display_name,
            message.model,
            message.adapter,
            message.num_tokens,
            time_of(message.create_time),
        )


@dataclass(frozen=True, slots=True)
class Invalidated:
    tenant_id: str
    adapter: str
    cache_version: int
    purged: Purged | None


@dataclass(frozen=True, slots=True)
class TenantCache:
    tenant_id: str  # empty: public prefixes
    device_tokens: int
    host_tokens: int
    namespaces: int


@dataclass(frozen=True, slots=True)
class WorkerCache:
    worker: str
    model: str
    reachable: bool
    device_slots: int
    device_free_slots: int
    host_slots: int
    host_free_slots: int
    tenants: tuple[TenantCache, ...]

    @classmethod
    def of(cls, message: admin_pb2.WorkerCacheStats) -> Self:
        return cls(
            message.worker,
            message.model,
            message.reachable,
            message.device_slots,
            message.device_free_slots,
            message.host_slots,
            message.host_free_slots,
            tuple(
                TenantCache(each.tenant_id, each.device_tokens, each.host_tokens, each.namespaces)
                for each in message.tenants
            ),
        )


@dataclass(frozen=True, slots=True)
class UsageCounts:
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_device_tokens: int
    cached_host_tokens: int
    cached_storage_tokens: int
    public_prefix_tokens: int
    cached_public_tokens: int

    @classmethod
    def of(cls, message: admin_pb2.UsageCounts) -> Self:
        return cls(*(getattr(message, each.name) for each in fields(cls)))


@dataclass(frozen=True, slots=True)
class UsageRow:
    day: str
    model: str
    adapter: str
    counts: UsageCounts


@dataclass(frozen=True, slots=True)
class Usage:
    rows: tuple[UsageRow, ...]
    total: UsageCounts

    @classmethod
    def of(cls, message: admin_pb2.GetUsageResponse) -> Self:
        rows = tuple(UsageRow(row.day, row.model, row.adapter, UsageCounts.of(row.counts)) for row in message.rows)
        return cls(rows, UsageCounts.of(message.total))


@dataclass(frozen=True, slots=True)
class AuditEntry:
    time: str
    operator: str
    method: str
    target: str
    code: str
    peer: str

    @classmethod
    def of(cls, message: admin_pb2.AuditEntry) -> Self:
        return cls(time_of(message.time), message.operator, message.method, message.target, message.code, message.peer)


def time_of(timestamp: Timestamp) -> str:
    return timestamp.ToDatetime(tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def timestamp_of(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    timestamp = Timestamp()
    timestamp.FromDatetime(moment)
    return timestamp


def duration_of(length: timedelta | None) -> Duration | None:
    if length is None:
        return None
    duration = Duration()
    duration.FromTimedelta(length)
    return duration


def _set_or_none(message: admin_pb2.TenantPolicy, name: Any) -> Any:
    return getattr(message, name) if message.HasField(name) else None
