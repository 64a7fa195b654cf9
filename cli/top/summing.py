"""From windows to rows: sums over endpoints, quantiles, rates. Pure.

Workers and gateways count the same tokens, each under names of its own, so sums are over the ones or over the others.
What clients see (time to first token, refusals) gateways know, how long a request waits for its turn workers know.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from cli.top import names
from cli.top.rows import TIERS, AdapterRow, GatewayRow, Hits, Latency, SlotUse, TenantRow, WorkerRow
from cli.top.samples import Samples, label
from cli.top.trail import Window, quantile

K = TypeVar("K")

# Ends of requests that are the service's fault and not the caller's.
_FAULTS = frozenset({"INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS", "DEADLINE_EXCEEDED", "UNIMPLEMENTED"})
_REFUSED = "refused"


def sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of what is known, None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def hits_of(windows: Sequence[Window], *, from_workers: bool, **where: str) -> Hits | None:
    prompt_name = names.PROMPT if from_workers else names.GATEWAY_PROMPT
    cached_name = names.CACHED if from_workers else names.GATEWAY_CACHED
    prompt = sum(window.total(prompt_name, **where) for window in windows)
    cached = {tier: sum(window.total(cached_name, tier=tier, **where) for window in windows) for tier in TIERS}
    return _hits(prompt, cached)


def _hits(prompt: float, cached: Mapping[str, float]) -> Hits | None:
    if not prompt:
        return None
    return Hits(
        prompt=prompt,
        device=cached.get("device", 0.0),
        host=cached.get("host", 0.0),
        storage=cached.get("storage", 0.0),
    )


def latency_of(windows: Sequence[Window], histogram: str, **where: str) -> Latency | None:
    buckets: dict[float, float] = {}
    for window in windows:
        for bound, count in window.buckets(histogram, **where).items():
            buckets[bound] = buckets.get(bound, 0.0) + count
    p50, p95 = quantile(buckets, 0.5), quantile(buckets, 0.95)
    return None if p50 is None or p95 is None else Latency(p50=p50, p95=p95)


def output_rate(window: Window, *, from_workers: bool) -> float | None:
    """Return tokens generated per second. Workers see each as it comes, gateways those of streams that have ended."""
    if not from_workers:
        return window.rate(names.GATEWAY_COMPLETION)
    return sum_known([window.rate(f"{names.WORKER_TTFT}_count"), window.rate(f"{names.GAPS}_count")])


def worker_row(endpoint: str, samples: Samples, window: Window, error: str) -> WorkerRow:
    """Return the row of a worker; one that is down has a name, and why, and no figures."""
    worker = label(samples.first(names.RUNNING), "worker") or endpoint
    info = samples.first(names.WORKER_INFO)
    model, version, device = (label(info, name) for name in ("model", "version", "device"))
    if error:
        return WorkerRow(
            worker=worker, endpoint=endpoint, up=False, error=error, model=model, device_name=device, version=version
        )
    return WorkerRow(
        worker=worker,
        endpoint=endpoint,
        up=True,
        model=model,
        device_name=device,
        version=version,
        running=samples.value(names.RUNNING),
        waiting=samples.value(names.WAITING),
        prompt_rate=window.rate(names.PROMPT),
        output_rate=output_rate(window, from_workers=True),
        step_s=window.mean(names.STEP),
        stalled_s=samples.value(names.STALLED),
        pause_rate=window.rate(names.PAUSES),
        lost_rate=window.rate(names.LOST) if names.LOST in samples.families else None,
        evicted_rate=window.rate(names.EVICTED, tier="device"),
        hits=hits_of([window], from_workers=True),
        device=_slots(samples, "device"),
        host=_slots(samples, "host"),
        settled=samples.value(names.SETTLED),
        mirror_rate=_rate_if_there(samples, window, names.MIRRORED),
        load_back_rate=_rate_if_there(samples, window, names.LOADED_BACK),
        prefetch_rate=_rate_if_there(samples, window, names.PREFETCHED),
        stored_bytes=samples.value(names.STORED),
        adapters=samples.value(names.RESIDENT),
        ttft=latency_of([window], names.WORKER_TTFT),
    )


def gateway_row(endpoint: str, samples: Samples, window: Window, error: str) -> GatewayRow:
    version = label(samples.first(names.GATEWAY_INFO), "version")
    if error:
        return GatewayRow(gateway=endpoint, up=False, error=error, version=version)
    connected = samples.values(names.CONNECTED, "worker")
    return GatewayRow(
        gateway=endpoint,
        up=True,
        version=version,
        request_rate=window.rate(names.REQUESTS),
        failure_rate=_failure_rate(window),
        refusal_rate=window.rate(names.DECISIONS, outcome=_REFUSED),
        auth_failure_rate=window.rate(names.AUTH_FAILURES),
        ttft=latency_of([window], names.GATEWAY_TTFT),
        streams=samples.value(names.STREAMS) or 0.0,
        queued=samples.value(names.QUEUED),
        redis=_yes(samples.value(names.REDIS)),
        shared_limits=_yes(samples.value(names.SHARED_LIMITS)),
        workers_connected=round(sum(connected.values())),
        workers_known=len(connected),
        workers_shunned=sum(state > 0 for state in samples.values(names.BREAKERS, "worker").values()),
        move_rate=window.rate(names.MOVES),
        known_pages=samples.value(names.INDEX),
        right=_right(window),
    )


def _right(window: Window) -> float | None:
    all_of_them = window.total(names.PREDICTIONS)
    return window.total(names.PREDICTIONS, outcome="right") / all_of_them if all_of_them else None


def tenant_rows(of_workers: Sequence[Window], of_gateways: Sequence[Window]) -> tuple[TenantRow, ...]:
    """Return a row for each tenant with anything in the window, the busiest first."""
    rates = _Rates(of_workers or of_gateways, from_workers=bool(of_workers), by=("tenant",))
    refused = [window.totals(names.DECISIONS, "tenant", outcome=_REFUSED) for window in of_gateways]
    tenants = {tenant for (tenant,) in rates.all()} | {tenant for totals in refused for (tenant,) in totals}
    rows = []
    for tenant in tenants - {""}:
        ttft = latency_of(of_gateways, names.GATEWAY_TTFT, tenant=tenant)
        rows.append(
            TenantRow(
                tenant=tenant,
                prompt_rate=rates.prompt((tenant,)),
                output_rate=rates.output((tenant,)),
                hits=rates.hits((tenant,)),
                ttft=ttft or latency_of(of_workers, names.WORKER_TTFT, tenant=tenant),
                queue=latency_of(of_workers, names.QUEUE_WAIT, tenant=tenant),
                refusal_rate=_refusal_rate(of_gateways, tenant),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.token_rate, row.tenant)))


def adapter_rows(windows: Sequence[Window], *, from_workers: bool) -> tuple[AdapterRow, ...]:
    """Return a row for each adapter of each tenant with anything in the window, the busiest first."""
    rates = _Rates(windows, from_workers=from_workers, by=("tenant", "adapter"))
    rows = [
        AdapterRow(
            tenant=key[0],
            adapter=key[1],
            prompt_rate=rates.prompt(key),
            output_rate=rates.output(key),
            hits=rates.hits(key),
        )
        for key in rates.all()
        if key[1]
    ]
    return tuple(sorted(rows, key=lambda row: (-row.token_rate, row.tenant, row.adapter)))


class _Rates:
    """Tokens by some labels, summed over endpoints, each by its own window."""

    def __init__(self, windows: Sequence[Window], *, from_workers: bool, by: tuple[str, ...]) -> None:
        prompt, cached, output = (
            (names.PROMPT, names.CACHED, names.COMPLETION)
            if from_workers
            else (names.GATEWAY_PROMPT, names.GATEWAY_CACHED, names.GATEWAY_COMPLETION)
        )
        self._prompt_rates: dict[tuple[str, ...], float] = {}
        self._output_rates: dict[tuple[str, ...], float] = {}
        self._prompts: dict[tuple[str, ...], float] = {}
        self._cached: dict[tuple[str, ...], dict[str, float]] = {}
        for window in windows:
            if not window.seconds:
                continue
            for key, tokens in window.totals(prompt, *by).items():
                _add(self._prompts, key, tokens)
                _add(self._prompt_rates, key, tokens / window.seconds)
            for key, tokens in window.totals(output, *by).items():
                _add(self._output_rates, key, tokens / window.seconds)
            for (*who, tier), tokens in window.totals(cached, *by, "tier").items():
                _add(self._cached.setdefault(tuple(who), {}), tier, tokens)

    def all(self) -> set[tuple[str, ...]]:
        return set(self._prompt_rates) | set(self._output_rates)

    def prompt(self, key: tuple[str, ...]) -> float:
        return self._prompt_rates.get(key, 0.0)

    def output(self, key: tuple[str, ...]) -> float:
        return self._output_rates.get(key, 0.0)

    def hits(self, key: tuple[str, ...]) -> Hits | None:
        return _hits(self._prompts.get(key, 0.0), self._cached.get(key, {}))


def _add(sums: dict[K, float], key: K, value: float) -> None:
    sums[key] = sums.get(key, 0.0) + value


def _slots(samples: Samples, tier: str) -> SlotUse | None:
    states = {label(labels, "state"): value for labels, value in samples.matching(names.SLOTS, {"tier": tier})}
    if not states:
        return None
    return SlotUse(
        free=states.get("free", 0.0), evictable=states.get("evictable", 0.0), in_use=states.get("in_use", 0.0)
    )


def _rate_if_there(samples: Samples, window: Window, name: str) -> float | None:
    """Return a rate; None also where an endpoint has no such counter, because it has no such tier."""
    return window.rate(name) if name in samples.families else None


def _failure_rate(window: Window) -> float | None:
    if not window.seconds:
        return None
    ends = window.totals(names.REQUESTS, "code")
    return sum(count for (code,), count in ends.items() if code.upper() in _FAULTS) / window.seconds


def _refusal_rate(windows: Sequence[Window], tenant: str) -> float | None:
    return sum_known(window.rate(names.DECISIONS, outcome=_REFUSED, tenant=tenant) for window in windows)


def _yes(value: float | None) -> bool | None:
    return None if value is None else value > 0
