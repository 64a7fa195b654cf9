"""PromQL as our dashboards use it: which series a variable chooses, and ratios that say nothing where there is nothing.

A ratio is a quotient of sums of rates, never a mean of ratios, and has no sample where its denominator is zero: panels
then show their text for "no value" and not 0 %, which would say that everything missed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# What a panel's variables choose. Series without a namespace, as Prometheus outside of Kubernetes has them, are chosen
# by "All", whose value is `.*`. Gateways name workers by address, so the variable `worker` is not for their series.
GATEWAYS = 'namespace=~"$namespace"'
WORKERS = f'{GATEWAYS}, worker=~"$worker"'
TENANTS = f'{GATEWAYS}, tenant=~"$tenant"'
WORKERS_AND_TENANTS = f'{WORKERS}, tenant=~"$tenant"'
WORK = f'{WORKERS_AND_TENANTS}, adapter=~"$adapter"'
GATEWAYS_WORK = f'{TENANTS}, adapter=~"$adapter"'

# Calls that serve tenants, and not operators; and what of their ends is our fault.
SERVING = 'method=~"InferenceService/.*|HTTP/.*"'
FAILED = 'code=~"UNAVAILABLE|INTERNAL|UNKNOWN|DATA_LOSS|DEADLINE_EXCEEDED"'

WINDOW = "$__rate_interval"
WHOLE_RANGE = "$__range"


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and what its series are called: plain text, or with labels as in `{{tenant}}`."""

    expr: str
    legend: str


def series(metric: str, chosen: str, *more: str) -> str:
    """Return a selector: `series("m", WORKERS, 'tier="host"')`."""
    return f"{metric}{{{', '.join((chosen, *more))}}}"


def rate(metric: str, chosen: str, *more: str, by: Sequence[str] = (), window: str = WINDOW) -> str:
    """Return the sum of rates of a counter, per second, by labels."""
    return total(f"rate({series(metric, chosen, *more)}[{window}])", by=by)


def increase(metric: str, chosen: str, *more: str, by: Sequence[str] = (), window: str = WHOLE_RANGE) -> str:
    return total(f"increase({series(metric, chosen, *more)}[{window}])", by=by)


def total(expr: str, by: Sequence[str] = ()) -> str:
    return f"sum{_by(by)}({expr})"


def ratio(numerator: str, denominator: str) -> str:
    return f"{numerator} / ({denominator} > 0)"


def moving(expr: str) -> str:
    """Leave out what stands still, so that a panel without traffic says so."""
    return f"{expr} > 0"


def or_zero(expr: str) -> str:
    """For one number without labels that is truly zero where nothing of the kind has ever happened."""
    return f"({expr} or vector(0))"


# Without observations a quantile is NaN, which is no number to show; a comparison leaves it out.
def quantile(q: float, histogram: str, chosen: str, *more: str, by: Sequence[str] = (), window: str = WINDOW) -> str:
    buckets = rate(f"{histogram}_bucket", chosen, *more, by=("le", *by), window=window)
    return f"histogram_quantile({q:g}, {buckets}) >= 0"


def mean(histogram: str, chosen: str, *, by: Sequence[str] = ()) -> str:
    return ratio(rate(f"{histogram}_sum", chosen, by=by), rate(f"{histogram}_count", chosen, by=by))


def hit_rate(chosen: str = WORK, *more: str, by: Sequence[str] = (), window: str = WINDOW) -> str:
    """Return the share of prompt tokens that the cache had; `more` chooses among the cached ones."""
    cached = rate("radixgate_cached_tokens_total", chosen, *more, by=by, window=window)
    return ratio(cached, rate("radixgate_prompt_tokens_total", chosen, by=by, window=window))


def hit_rate_by_tier(chosen: str = WORK) -> str:
    """Return the share of prompt tokens that each tier had, of all prompt tokens: the tiers add up to the hit rate."""
    cached = rate("radixgate_cached_tokens_total", chosen, by=("tier",))
    prompt = rate("radixgate_prompt_tokens_total", chosen)
    return f"{cached} / on () group_left () ({prompt} > 0)"


def named_adapter(expr: str) -> str:
    """Call the base model by a name, where the label `adapter` is empty."""
    return f'label_replace({expr}, "adapter", "base model", "adapter", "")'


def quantiles(histogram: str, chosen: str, *more: str) -> list[Query]:
    """Return the median, and the two above it that people feel."""
    return [Query(quantile(q, histogram, chosen, *more), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)]


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)}) " if labels else ""
