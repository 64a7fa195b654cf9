"""The waiting line: in which order sequences start. Knows nothing of slots, leases or steps.

    fair         turns by service, weighted; within a tenant the longest cached prefix first   (service, within_tenant)
    lpm          one start each in turn; within a tenant the longest cached prefix first       (turns, within_tenant)
    dfs_weight   one start each in turn; within a tenant depth-first over shared prefixes      (turns, within_tenant)
    priority     high priority first, then arrival, whatever the tenant                        (by_arrival)
    fcfs         arrival                                                                       (by_arrival)

The first three look at priorities first, and let nobody wait for ever (`among_tenants`).
"""

from collections.abc import Callable

from worker.config import EngineConfig
from worker.engine.waiting.among_tenants import TenantsLine
from worker.engine.waiting.by_arrival import SortedLine, by_priority, first_come
from worker.engine.waiting.hits import KnownHits
from worker.engine.waiting.line import CachedPrefixes, Front, Readiness, WaitingLine
from worker.engine.waiting.service import FairService
from worker.engine.waiting.turns import RoundRobin, Turns
from worker.engine.waiting.within_tenant import DepthFirst, LongestCachedFirst, PrefixOrder, TenantQueue

__all__ = ["CachedPrefixes", "Front", "KnownHits", "Readiness", "WaitingLine", "by_name"]


def by_name(name: str, config: EngineConfig, cached: CachedPrefixes) -> WaitingLine:
    """Return an empty line of the policy `name`. Raises ValueError that lists the names there are."""
    try:
        make = _LINES[name]
    except KeyError:
        raise ValueError(f"unknown order {name!r}; known: {', '.join(sorted(_LINES))}") from None
    return make(config, cached)


def _fair(config: EngineConfig, cached: CachedPrefixes) -> WaitingLine:
    turns = FairService(config.cached_token_cost, config.fair_quantum_tokens)
    return _among_tenants(turns, lambda: LongestCachedFirst(cached), config)


def _longest_prefix(config: EngineConfig, cached: CachedPrefixes) -> WaitingLine:
    return _among_tenants(RoundRobin(), lambda: LongestCachedFirst(cached), config)


def _depth_first(config: EngineConfig, cached: CachedPrefixes) -> WaitingLine:
    return _among_tenants(RoundRobin(), DepthFirst, config)


def _among_tenants(turns: Turns, make_order: Callable[[], PrefixOrder], config: EngineConfig) -> WaitingLine:
    return TenantsLine(turns, lambda: TenantQueue(make_order(), config.max_wait_s), config.max_wait_s)


_LINES: dict[str, Callable[[EngineConfig, CachedPrefixes], WaitingLine]] = {
    "fair": _fair,
    "lpm": _longest_prefix,
    "dfs_weight": _depth_first,
    "priority": lambda config, cached: SortedLine(by_priority),
    "fcfs": lambda config, cached: SortedLine(first_come),
}
