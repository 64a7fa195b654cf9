"""Everything that a worker and a gateway can show, from the code that shows it.

    for family in catalogue():
        family.name, family.kind, family.labels, family.unit, family.buckets, family.process, family.when
    by_series()["radixgate_step_seconds_bucket"].labels_of("radixgate_step_seconds_bucket")

Whoever queries metrics (rules, dashboards, commands) can check names and labels against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from metrics.described import Described
from metrics.gateway import GatewayMetrics
from metrics.worker import WorkerMetrics

__all__ = ["Described", "by_series", "catalogue"]


def catalogue() -> tuple[Described, ...]:
    """Every family, the workers' first, each in the order in which it is made."""
    return (*_of_a_worker_with_everything(), *_of_a_gateway_with_everything())


def by_series() -> Mapping[str, Described]:
    """The families by the names that samples have. `process_*` is of both processes, and here once."""
    return {series: family for family in catalogue() for series in family.series}


def _of_a_worker_with_everything() -> tuple[Described, ...]:
    metrics = WorkerMetrics("worker")
    metrics.host_pool(pinned=True, num_bytes=0, bytes_per_token=1)
    metrics.storage(_EmptyStore())
    metrics.adapters(num_resident=lambda: 0, host_bytes=lambda: 0)
    return metrics.described


def _of_a_gateway_with_everything() -> tuple[Described, ...]:
    metrics = GatewayMetrics()
    metrics.certificate_loaded(0.0)
    metrics.signing_keys_loaded(0)
    metrics.usage_log(lambda: 0)
    metrics.workers_registered(0, 0)
    return metrics.described


@dataclass(frozen=True, slots=True)
class _Figures:
    num_pages: int = 0
    num_bytes: int = 0
    found: int = 0
    missing: int = 0
    corrupt: int = 0
    evicted: int = 0


class _EmptyStore:
    """What a store's collector asks."""

    name = "none"

    def stats(self) -> _Figures:
        return _Figures()
