"""Who uses how much, how well are they served, and are the limits and shares kept?"""

from grafana_foundation_sdk.builders import stat, table, timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.colours import CALM, CODES, DECISIONS, GOOD, QUANTILES, WARNING
from deploy.grafana.page import Page
from deploy.grafana.panels import NONE, Figure, Look, graph, number
from deploy.grafana.queries import (
    GATEWAYS,
    GATEWAYS_WORK,
    SERVING,
    TENANTS,
    WHOLE_RANGE,
    Query,
    increase,
    named_adapter,
    or_zero,
    quantile,
    rate,
    ratio,
    series,
    total,
)
from deploy.grafana.shared import CALLS, TOKENS, TOKENS_PER_SECOND, TTFT, calls_by_outcome
from deploy.grafana.tables import Column, Rows, table_of

_PROMPT = "radixgate_gateway_prompt_tokens_total"
_CACHED = "radixgate_gateway_cached_tokens_total"
_COMPLETION = "radixgate_gateway_completion_tokens_total"
_COMPUTED = "radixgate_computed_prompt_tokens_total"
_DECISIONS = "radixgate_gateway_quota_decisions_total"
_QUEUE_WAIT = "radixgate_queue_wait_seconds"
_BY_TENANT = ("tenant",)


def tenants() -> Dashboard:
    about = "Who uses how much, how well tenants are served, and whether limits and shares are kept."
    page = Page("radixgate-tenants", "RadixGate / Tenants", about, ["namespace", "tenant", "adapter"])
    page.add(_active(), _calls_now(), _refused_now(), _hit_rate_now(), width=3, height=3)
    page.add(_output_now(), _first_token_now(), _wait_now(), _open_now(), width=3, height=3)
    page.row("All tenants, over the chosen time")
    page.add(_table(), width=24, height=8)
    page.row("Usage")
    page.add(_prompt(), _cached(), _completion(), width=8, height=8)
    page.row("How they are served")
    page.add(_hit_rate(), _first_token(0.5), _first_token(0.99), width=8, height=8)
    page.row("Fairness")
    page.add(_share(), _wait(0.5), _wait(0.99), width=8, height=8)
    page.row("Limits")
    page.add(_decisions(), _refusals(), _queue(), width=8, height=8)
    page.row("Calls")
    page.add(calls_by_outcome(TENANTS), _codes(), _open(), width=8, height=8)
    page.add(_adapters(), _pauses(), _credentials(), width=8, height=8)
    return page.build()


def _active() -> stat.Panel:
    about = (
        "Tenants that have sent prompts within the last minutes (`radixgate_gateway_prompt_tokens_total`). The busiest "
        "50 have labels of their own; the others count as one, `other`."
    )
    active = f"count({rate(_PROMPT, GATEWAYS_WORK, by=_BY_TENANT)} > 0)"
    return number("Active tenants", about, Query(active, "tenants"), Figure("short", 0))


def _calls_now() -> stat.Panel:
    about = "Calls of tenants per second over gRPC and HTTP (`radixgate_gateway_requests_total`)."
    return number("Calls", about, Query(f"{rate(CALLS, TENANTS, SERVING)} > 0", "calls"), Figure("reqps", 2))


def _refused_now() -> stat.Panel:
    about = (
        "Share of calls that a limit refused (`radixgate_gateway_requests_total` with RESOURCE_EXHAUSTED). It is what "
        "limits are for; many say that a client does not heed retry-after, or that a limit is too low. Refusals, "
        "below, says whose."
    )
    refused = or_zero(rate(CALLS, TENANTS, SERVING, 'code="RESOURCE_EXHAUSTED"'))
    figure = Figure("percentunit", 1, ((None, GOOD), (0.05, WARNING)), {"0": NONE})
    return number("Refused", about, Query(ratio(refused, rate(CALLS, TENANTS, SERVING)), "refused"), figure)


def _hit_rate_now() -> stat.Panel:
    about = (
        "Share of prompt tokens that were in a cache, as responses report it (`radixgate_gateway_cached_tokens_total` "
        "over `radixgate_gateway_prompt_tokens_total`)."
    )
    hits = ratio(rate(_CACHED, GATEWAYS_WORK), rate(_PROMPT, GATEWAYS_WORK))
    return number("Hit rate", about, Query(hits, "hit rate"), Figure("percentunit", 1))


def _output_now() -> stat.Panel:
    about = "Tokens generated per second (`radixgate_gateway_completion_tokens_total`, counted when a stream ends)."
    return number(
        "Output", about, Query(f"{rate(_COMPLETION, GATEWAYS_WORK)} > 0", "output"), Figure(TOKENS_PER_SECOND, 1)
    )


def _first_token_now() -> stat.Panel:
    about = f"99 of 100 requests have their first token within this time (`{TTFT}`); the objective is 2.5 s."
    figure = Figure("s", None, ((None, GOOD), (2.5, WARNING)))
    return number("First token, p99", about, Query(quantile(0.99, TTFT, TENANTS), "p99"), figure)


def _wait_now() -> stat.Panel:
    about = (
        f"99 of 100 requests wait no longer than this on a worker before their turn (`{_QUEUE_WAIT}`). Tenants take "
        "turns by what they have been served, so a flood of one shows in its own wait: see Fairness."
    )
    figure = Figure("s", None, ((None, GOOD), (5, WARNING)))
    return number("Queue wait, p99", about, Query(quantile(0.99, _QUEUE_WAIT, TENANTS), "p99"), figure)


def _open_now() -> stat.Panel:
    about = "Streams that gateways serve now (`radixgate_gateway_open_streams`)."
    streams = total(series("radixgate_gateway_open_streams", TENANTS))
    return number("Open streams", about, Query(f"{streams} > 0", "open"), Figure("short", 0, ((None, CALM),)))


def _table() -> table.Panel:
    about = (
        "Each tenant over the chosen time. Tokens and calls are what counters grew by "
        "(`radixgate_gateway_prompt_tokens_total`, `radixgate_gateway_cached_tokens_total`, "
        "`radixgate_gateway_completion_tokens_total`, `radixgate_gateway_requests_total`, "
        "`radixgate_computed_prompt_tokens_total`), and estimates at the edges; waits are those of "
        "`radixgate_gateway_time_to_first_token_seconds` and `radixgate_queue_wait_seconds`: bills come from the usage "
        "log. Computed share: the tenant's part of all prefill. Click a headline to sort."
    )
    calls = increase(CALLS, TENANTS, SERVING, by=_BY_TENANT)
    prompt = increase(_PROMPT, GATEWAYS_WORK, by=_BY_TENANT)
    cached = increase(_CACHED, GATEWAYS_WORK, by=_BY_TENANT)
    computed = increase(_COMPUTED, GATEWAYS_WORK, by=_BY_TENANT)
    refused = increase(CALLS, TENANTS, SERVING, 'code="RESOURCE_EXHAUSTED"', by=_BY_TENANT)
    columns = [
        Column("Calls", f"{calls} > 0", "short", 0),
        Column("Refused", f"{refused} > 0", "short", 0, no_value="0"),
        Column("Prompt", f"{prompt} > 0", TOKENS, 1),
        Column(
            "Hit rate",
            ratio(cached, prompt),
            "percentunit",
            1,
            gauge=True,
            width=170,
        ),
        Column("Completion", f"{increase(_COMPLETION, GATEWAYS_WORK, by=_BY_TENANT)} > 0", TOKENS, 1),
        Column(
            "Computed share",
            f"{computed} / on () group_left () ({increase(_COMPUTED, GATEWAYS)} > 0)",
            "percentunit",
            1,
            gauge=True,
            width=170,
        ),
        Column("First token p50", quantile(0.5, TTFT, TENANTS, by=_BY_TENANT, window=WHOLE_RANGE), "s"),
        Column("First token p99", quantile(0.99, TTFT, TENANTS, by=_BY_TENANT, window=WHOLE_RANGE), "s"),
        Column("Queue wait p99", quantile(0.99, _QUEUE_WAIT, TENANTS, by=_BY_TENANT, window=WHOLE_RANGE), "s"),
    ]
    return table_of("Tenants", about, Rows({"tenant": "Tenant"}, sort_by="Prompt"), columns)


def _usage(title: str, metric: str, meaning: str) -> timeseries.Panel:
    about = f"{meaning} (`{metric}`). Exact figures for bills are in the usage log."
    used = f"{rate(metric, GATEWAYS_WORK, by=_BY_TENANT)} > 0"
    return graph(title, about, [Query(used, "{{tenant}}")], Look(TOKENS_PER_SECOND, stacked=True, many=True))


def _prompt() -> timeseries.Panel:
    return _usage("Prompt tokens", _PROMPT, "Tokens of prompts per second, by tenant, cached ones included")


def _cached() -> timeseries.Panel:
    return _usage("Cached tokens", _CACHED, "Those of the prompt tokens that a cache had, per second, by tenant")


def _completion() -> timeseries.Panel:
    return _usage(
        "Completion tokens", _COMPLETION, "Tokens generated per second, by tenant, counted when a stream ends"
    )


def _hit_rate() -> timeseries.Panel:
    about = (
        "Share of prompt tokens that were in a cache, by tenant (`radixgate_gateway_cached_tokens_total` over "
        "`radixgate_gateway_prompt_tokens_total`). One that falls alone has changed its prompts, or had its cache "
        "purged; all together, look at Cache."
    )
    hits = ratio(rate(_CACHED, GATEWAYS_WORK, by=_BY_TENANT), rate(_PROMPT, GATEWAYS_WORK, by=_BY_TENANT))
    look = Look("percentunit", top=1, decimals=0, many=True)
    return graph("Hit rate", about, [Query(hits, "{{tenant}}")], look)


def _first_token(q: float) -> timeseries.Panel:
    about = (
        f"{_of(q)} requests of a tenant have their first token within this time (`{TTFT}`). A tenant that is slower "
        "than the others has longer prompts, a colder cache, or a limit that makes it wait."
    )
    query = Query(quantile(q, TTFT, TENANTS, by=_BY_TENANT), "{{tenant}}")
    return graph(f"Time to first token, p{q * 100:g}", about, [query], Look("s", many=True))


def _share() -> timeseries.Panel:
    about = (
        "What part of all prefill each tenant gets (`radixgate_computed_prompt_tokens_total`). While everybody waits, "
        "parts follow the tenants' weights; otherwise they follow the traffic."
    )
    computed = rate(_COMPUTED, GATEWAYS_WORK, by=_BY_TENANT)
    share = f"{computed} / on () group_left () ({rate(_COMPUTED, GATEWAYS)} > 0)"
    look = Look("percentunit", stacked=True, top=1, decimals=0, many=True)
    return graph("Share of computed tokens", about, [Query(share, "{{tenant}}")], look)


def _wait(q: float) -> timeseries.Panel:
    about = (
        f"{_of(q)} requests of a tenant wait no longer than this on a worker before their turn (`{_QUEUE_WAIT}`). Fair "
        "means that who sends much waits long, and the others hardly. All long means too few workers."
    )
    query = Query(quantile(q, _QUEUE_WAIT, TENANTS, by=_BY_TENANT), "{{tenant}}")
    return graph(f"Queue wait, p{q * 100:g}", about, [query], Look("s", many=True))


def _decisions() -> timeseries.Panel:
    about = (
        "What was decided per second about calls of tenants with limits (`radixgate_gateway_quota_decisions_total`). "
        "Queued calls wait for another of the same tenant to end."
    )
    query = Query(f"{rate(_DECISIONS, TENANTS, by=('outcome',))} > 0", "{{outcome}}")
    return graph("Decisions about limits", about, [query], Look("reqps", DECISIONS, stacked=True))


def _refusals() -> timeseries.Panel:
    about = (
        "Calls refused per second, by tenant and by the limit that they met "
        "(`radixgate_gateway_quota_decisions_total`). Raise the limit with `radixgate tenant update`, or talk to the "
        "tenant."
    )
    refused = rate(_DECISIONS, TENANTS, 'outcome="refused"', by=("tenant", "limit"))
    look = Look("reqps", no_value=NONE)
    return graph("Refusals", about, [Query(f"{refused} > 0", "{{tenant}}: {{limit}}")], look)


def _queue() -> timeseries.Panel:
    about = (
        "How long calls wait for another one of their tenant to end, where concurrency is limited "
        "(`radixgate_gateway_queue_seconds`, over all tenants)."
    )
    queries = [
        Query(quantile(q, "radixgate_gateway_queue_seconds", GATEWAYS), f"p{q * 100:g}") for q in (0.5, 0.9, 0.99)
    ]
    return graph("Wait for a place of the tenant", about, queries, Look("s", QUANTILES))


def _codes() -> timeseries.Panel:
    about = (
        "Calls of tenants per second that did not end with OK, by gRPC status; HTTP calls count under the status they "
        "stand for (`radixgate_gateway_requests_total`)."
    )
    bad = rate(CALLS, TENANTS, SERVING, 'code!="OK"', by=("code",))
    return graph(
        "Calls that did not end with OK", about, [Query(f"{bad} > 0", "{{code}}")], Look("reqps", CODES, no_value=NONE)
    )


def _open() -> timeseries.Panel:
    about = "Streams that gateways serve now, by tenant (`radixgate_gateway_open_streams`)."
    streams = total(series("radixgate_gateway_open_streams", TENANTS), by=_BY_TENANT)
    look = Look("short", stacked=True, decimals=0, many=True)
    return graph("Open streams", about, [Query(f"{streams} > 0", "{{tenant}}")], look)


def _adapters() -> timeseries.Panel:
    about = (
        "Tokens of prompts per second by adapter (`radixgate_gateway_prompt_tokens_total`). Many adapters at a time "
        "compete for places on the device: see Fleet."
    )
    used = named_adapter(f"{rate(_PROMPT, GATEWAYS_WORK, by=('adapter',))} > 0")
    look = Look(TOKENS_PER_SECOND, stacked=True, many=True)
    return graph("Prompt tokens by adapter", about, [Query(used, "{{adapter}}")], look)


def _pauses() -> timeseries.Panel:
    about = (
        "Running sequences that gave up their slots for others, per second, by tenant (`radixgate_pauses_total`). They "
        "go on later and compute again what was evicted meanwhile. Many mean too few slots for what runs."
    )
    query = Query(f"{rate('radixgate_pauses_total', TENANTS, by=_BY_TENANT)} > 0", "{{tenant}}")
    return graph("Pauses", about, [query], Look("ops", no_value=NONE, many=True))


def _credentials() -> timeseries.Panel:
    about = (
        "Credentials refused per second, by reason (`radixgate_gateway_auth_failures_total`). A burst of unknown keys "
        "is somebody who guesses; expired ones are a client that has not been given its new key."
    )
    query = Query(f"{rate('radixgate_gateway_auth_failures_total', GATEWAYS, by=('reason',))} > 0", "{{reason}}")
    return graph("Credentials refused", about, [query], Look("ops", no_value=NONE))


def _of(q: float) -> str:
    return "Half of the" if q == 0.5 else f"{q * 100:g} of 100"
