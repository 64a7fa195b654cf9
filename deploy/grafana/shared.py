"""Panels that more than one dashboard shows, and units that they share."""

from grafana_foundation_sdk.builders import stat, timeseries

from deploy.grafana.colours import CALM, OUTCOMES, QUANTILES, TIERS
from deploy.grafana.panels import Figure, Look, graph, number
from deploy.grafana.queries import FAILED, SERVING, Query, hit_rate, quantiles, rate

TTFT = "radixgate_gateway_time_to_first_token_seconds"
CALLS = "radixgate_gateway_requests_total"

TOKENS_PER_SECOND = "count:tok/s"
TOKENS = "count:tok"


def tokens_by_source(chosen: str) -> timeseries.Panel:
    about = (
        "Where tokens of prompts come from: found on the device, on the host or in storage "
        "(`radixgate_cached_tokens_total`), or computed (`radixgate_computed_prompt_tokens_total`). Coloured is work "
        "that the cache saved, grey is prefill that workers did; together they are all prompt tokens "
        "(`radixgate_prompt_tokens_total`). Grey that grows without more requests means that prompts have changed or "
        "that the pools are too small: see Cache."
    )
    busy = f"on () ({rate('radixgate_prompt_tokens_total', chosen)} > 0)"
    cached = rate("radixgate_cached_tokens_total", chosen, by=("tier",))
    computed = rate("radixgate_computed_prompt_tokens_total", chosen)
    queries = [Query(f"{cached} and {busy}", "{{tier}}"), Query(f"{computed} > 0", "computed")]
    return graph("Prompt tokens by source", about, queries, Look(TOKENS_PER_SECOND, TIERS, stacked=True))


def first_token(chosen: str) -> timeseries.Panel:
    about = (
        f"From the arrival of a request to its first token (`{TTFT}`): limits, queues and prefill. A high hit rate "
        "that does not show here means that requests wait for something else: look at queue waits (Tenants) and steps "
        "(Fleet)."
    )
    return graph("Time to first token", about, quantiles(TTFT, chosen), Look("s", QUANTILES))


def hit_rate_now(chosen: str) -> stat.Panel:
    about = (
        "Share of prompt tokens that were in the cache, on any tier: `radixgate_cached_tokens_total` over "
        "`radixgate_prompt_tokens_total`. What is good depends on the traffic, so compare it with its own past, and "
        "with the time to the first token."
    )
    return number("Hit rate", about, Query(hit_rate(chosen), "hit rate"), Figure("percentunit", 1))


def saved_now(chosen: str) -> stat.Panel:
    about = (
        "Prompt tokens per second that nobody had to compute, because the cache had them "
        "(`radixgate_cached_tokens_total`). Divided by what one worker prefills per second, this is the number of "
        "workers that the cache saves."
    )
    saved = rate("radixgate_cached_tokens_total", chosen)
    return number("Prefill saved", about, Query(f"{saved} > 0", "saved"), Figure(TOKENS_PER_SECOND, 1, ((None, CALM),)))


def calls_by_outcome(chosen: str) -> timeseries.Panel:
    about = (
        "Calls of tenants per second by how they ended (`radixgate_gateway_requests_total`). Refused: over a limit "
        "(RESOURCE_EXHAUSTED), see Tenants. Failed: our fault, see the runbook. Client error: the request or its "
        "credentials are wrong."
    )
    by_outcome = {
        "ok": 'code="OK"',
        "refused": 'code="RESOURCE_EXHAUSTED"',
        "cancelled": 'code="CANCELLED"',
        "client error": f'{FAILED.replace("=~", "!~")}, code!~"OK|RESOURCE_EXHAUSTED|CANCELLED"',
        "failed": FAILED,
    }
    queries = [Query(f"{rate(CALLS, chosen, SERVING, codes)} > 0", name) for name, codes in by_outcome.items()]
    return graph("Calls by outcome", about, queries, Look("reqps", OUTCOMES, stacked=True))
