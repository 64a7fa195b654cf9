"""What a tenant may do and what it is due: as it is set, and as it holds.

Values with bounds; knows neither where they are kept nor who enforces them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Interval

_TENANT_ID = re.compile(r"[a-z0-9_-]{1,64}")

MIN_PRIORITY, MAX_PRIORITY = -100, 100

Count = Annotated[int, Interval(ge=1, le=10**15)]


def is_tenant_id(value: str) -> bool:
    """Whether a tenant may have this id."""
    return _TENANT_ID.fullmatch(value) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPolicy:
    """What is set somewhere for a tenant. None leaves it to whatever comes next."""

    weight: Annotated[float, Interval(ge=0.001, le=1000)] | None = None
    priority: Annotated[int, Interval(ge=MIN_PRIORITY, le=MAX_PRIORITY)] | None = None
    # Slots of each worker's device and host pool that other tenants' traffic cannot take.
    cache_floor_tokens: Annotated[int, Interval(ge=0, le=10**12)] | None = None
    max_deadline_s: Annotated[float, Interval(gt=0, le=86_400 * 366)] | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    max_concurrent_requests: Annotated[int, Interval(ge=1, le=10**6)] | None = None
    max_queued_requests: Annotated[int, Interval(ge=0, le=10**6)] | None = None
    # None named: all that the tenant can see.
    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for a tenant. None: no limit."""

    weight: float = 1.0
    priority: int = 0  # the highest that a request may have, and the default
    cache_floor_tokens: int = 0
    max_deadline_s: float | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent_requests: int | None = None
    max_queued_requests: int = 0
    models: frozenset[str] = frozenset()  # none named: all
    adapters: frozenset[str] = frozenset()


def terms_of(policies: Sequence[TenantPolicy]) -> Terms:
    """Return what holds where the first of `policies` that sets something decides it."""

    def first(name: str, default: Any) -> Any:
        values = (getattr(policy, name) for policy in policies)
        return next((value for value in values if value is not None and value != ()), default)

    return Terms(
        weight=first("weight", 1.0),
        priority=first("priority", 0),
        cache_floor_tokens=first("cache_floor_tokens", 0),
        max_deadline_s=first("max_deadline_s", None),
        requests_per_minute=first("requests_per_minute", None),
        tokens_per_minute=first("tokens_per_minute", None),
        max_concurrent_requests=first("max_concurrent_requests", None),
        max_queued_requests=first("max_queued_requests", 0),
        models=frozenset(first("models", ())),
        adapters=frozenset(first("adapters", ())),
    )
