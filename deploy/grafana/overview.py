"""Is it healthy, and how much does the cache save?"""

from grafana_foundation_sdk.builders import stat, table, timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.colours import BAD, CALM, GOOD, LINE, TIERS, WARNING
from deploy.grafana.page import Page
from deploy.grafana.panels import NONE, Figure, Look, graph, number
from deploy.grafana.queries import (
    FAILED,
    GATEWAYS,
    SERVING,
    WORKERS,
    Query,
    hit_rate,
    hit_rate_by_tier,
    or_zero,
    quantile,
    rate,
    ratio,
    series,
    total,
)
from deploy.grafana.shared import (
    CALLS,
    TOKENS_PER_SECOND,
    TTFT,
    calls_by_outcome,
    first_token,
    hit_rate_now,
    saved_now,
    tokens_by_source,
)
from deploy.grafana.tables import Column, Rows, table_of

_ALERTS = series("ALERTS", GATEWAYS, 'alertname=~"Radixgate.*"', 'alertstate="firing"')
# As the alerts have them: what the objective allows for the first token, and what they call a long wait.
_WITHIN_OBJECTIVE_S = 2.5
_LONG_WAIT_S = 5


def overview() -> Dashboard:
    about = "Whether RadixGate is healthy, and how much its cache saves. The rest is one link away."
    page = Page("radixgate-overview", "RadixGate / Overview", about, ["namespace", "worker"])
    page.add(_firing(), _links_down(), _failed(), _first_token_now(), width=3, height=3)
    page.add(hit_rate_now(WORKERS), saved_now(WORKERS), _output_now(), _waiting_now(), width=3, height=3)
    page.row("What the cache saves")
    page.add(tokens_by_source(WORKERS), _hit_rate(), first_token(GATEWAYS), width=8, height=8)
    page.row("Traffic")
    page.add(calls_by_outcome(GATEWAYS), _output(), _sequences(), width=8, height=8)
    page.row("Where")
    page.add(_alerts(), width=6, height=6)
    page.add(_models(), _workers(), width=9, height=6)
    return page.build()


def _firing() -> stat.Panel:
    about = (
        "Alerts that fire now (`ALERTS`, from the rules that come with RadixGate). Any is a reason to look: the table "
        "below names them, the runbook says what to do."
    )
    figure = Figure("short", 0, ((None, GOOD), (1, BAD)), {"0": NONE})
    return number("Alerts firing", about, Query(or_zero(f"count({_ALERTS})"), "alerts"), figure)


def _links_down() -> stat.Panel:
    about = (
        "Streams from a gateway to a worker that are down (`radixgate_gateway_worker_connected` is 0). Requests go to "
        "other workers meanwhile. Fleet says which one it is."
    )
    down = or_zero(f"count({series('radixgate_gateway_worker_connected', GATEWAYS)} == 0)")
    figure = Figure("short", 0, ((None, GOOD), (1, BAD)), {"0": NONE})
    return number("Worker links down", about, Query(down, "down"), figure)


def _failed() -> stat.Panel:
    about = (
        "Share of tenants' calls that failed through no fault of theirs: UNAVAILABLE, INTERNAL, UNKNOWN, DATA_LOSS or "
        "DEADLINE_EXCEEDED (`radixgate_gateway_requests_total`). Above 0.1 % it eats up an objective of 99.9 %. Calls "
        "by outcome, below, says since when."
    )
    failed = or_zero(rate(CALLS, GATEWAYS, SERVING, FAILED))
    figure = Figure("percentunit", 2, ((None, GOOD), (0.001, WARNING), (0.01, BAD)), {"0": "0%"})
    return number("Failed calls", about, Query(ratio(failed, rate(CALLS, GATEWAYS, SERVING)), "failed"), figure)


def _first_token_now() -> stat.Panel:
    about = (
        f"99 of 100 requests have their first token within this time (`{TTFT}`). {_WITHIN_OBJECTIVE_S} s is what the "
        "objective of the alerts allows; beyond it, look at queue waits (Tenants) and at steps and pauses (Fleet)."
    )
    figure = Figure("s", None, ((None, GOOD), (_WITHIN_OBJECTIVE_S, WARNING), (4 * _WITHIN_OBJECTIVE_S, BAD)))
    return number("First token, p99", about, Query(quantile(0.99, TTFT, GATEWAYS), "p99"), figure)


def _output_now() -> stat.Panel:
    about = "Tokens generated per second by all workers (`radixgate_completion_tokens_total`)."
    output = rate("radixgate_completion_tokens_total", WORKERS)
    return number("Output", about, Query(f"{output} > 0", "output"), Figure(TOKENS_PER_SECOND, 1, ((None, CALM),)))


def _waiting_now() -> stat.Panel:
    about = (
        "95 of 100 requests wait no longer than this on a worker before their turn (`radixgate_queue_wait_seconds`). "
        "Seconds mean that the fleet is too small for the traffic, or that a worker is stuck: see Fleet."
    )
    figure = Figure("s", None, ((None, GOOD), (_LONG_WAIT_S, WARNING), (6 * _LONG_WAIT_S, BAD)))
    return number(
        "Queue wait, p95", about, Query(quantile(0.95, "radixgate_queue_wait_seconds", WORKERS), "p95"), figure
    )


def _hit_rate() -> timeseries.Panel:
    about = (
        "Share of prompt tokens found in the cache, by the tier that had them: `radixgate_cached_tokens_total` over "
        "`radixgate_prompt_tokens_total`. The top of the area is the hit rate. Much from host or storage means that "
        "the device is small for the traffic, and that lower tiers make up for it."
    )
    look = Look("percentunit", TIERS, stacked=True, top=1, decimals=0)
    return graph("Hit rate by tier", about, [Query(hit_rate_by_tier(WORKERS), "{{tier}}")], look)


def _output() -> timeseries.Panel:
    about = (
        "Tokens generated per second by model (`radixgate_gateway_completion_tokens_total`, counted when a stream "
        "ends). It falls when prefill takes the steps: compare with computed tokens above."
    )
    output = rate("radixgate_gateway_completion_tokens_total", GATEWAYS, by=("model",))
    return graph("Output by model", about, [Query(f"{output} > 0", "{{model}}")], Look(TOKENS_PER_SECOND))


def _sequences() -> timeseries.Panel:
    about = (
        "Sequences that run, and those that wait for their turn, on all workers (`radixgate_running_sequences`, "
        "`radixgate_waiting_sequences`). Waiting ones for long mean too few workers or too few slots."
    )
    queries = [Query(total(series(f"radixgate_{name}_sequences", WORKERS)), name) for name in ("running", "waiting")]
    return graph("Running and waiting", about, queries, Look("short", LINE, decimals=0, smallest_top=4))


def _alerts() -> table.Panel:
    about = "Which alerts fire now (`ALERTS`). The runbook, linked above, has a section for each."
    rows = Rows(
        {"alertname": "Alert", "severity": "Severity", "worker": "Worker", "tenant": "Tenant"},
        sort_by="Severity",
        no_value=NONE,
        widths={"Severity": 90},
        descending=False,
    )
    firing = f"sum by (alertname, severity, worker, tenant) ({_ALERTS})"
    return table_of("Alerts", about, rows, [Column("Firing", firing, "short", shown=False)])


def _models() -> table.Panel:
    about = (
        "What each model gets and gives, as gateways count it (`radixgate_gateway_prompt_tokens_total`, "
        "`radixgate_gateway_cached_tokens_total`, `radixgate_gateway_completion_tokens_total`), and its time to the "
        "first token (`radixgate_gateway_time_to_first_token_seconds`)."
    )
    by = ("model",)
    prompt = rate("radixgate_gateway_prompt_tokens_total", GATEWAYS, by=by)
    cached = rate("radixgate_gateway_cached_tokens_total", GATEWAYS, by=by)
    columns = [
        Column("Prompts", f"{prompt} > 0", TOKENS_PER_SECOND, 1, width=85),
        Column("Hit rate", ratio(cached, prompt), "percentunit", 1, gauge=True, width=95),
        Column(
            "Output",
            f"{rate('radixgate_gateway_completion_tokens_total', GATEWAYS, by=by)} > 0",
            TOKENS_PER_SECOND,
            1,
            width=85,
        ),
        Column("First token p99", quantile(0.99, TTFT, GATEWAYS, by=by), "s", None, width=125),
    ]
    return table_of("Models", about, Rows({"model": "Model"}, sort_by="Prompts"), columns)


def _workers() -> table.Panel:
    about = (
        "How busy each worker is (`radixgate_running_sequences`, `radixgate_waiting_sequences`), what its cache has "
        "(`radixgate_cached_tokens_total` over `radixgate_prompt_tokens_total`), and how much of its device pool is "
        "not free (`radixgate_slots`). Workers that differ much get different traffic: see Fleet."
    )
    by = ("worker",)
    slots = series("radixgate_slots", WORKERS, 'tier="device"')
    taken = total(series("radixgate_slots", WORKERS, 'tier="device"', 'state="in_use"'), by=by)
    columns = [
        Column("Running", total(series("radixgate_running_sequences", WORKERS), by=by), "short", 0, width=80),
        Column("Waiting", total(series("radixgate_waiting_sequences", WORKERS), by=by), "short", 0, width=80),
        Column("Hit rate", hit_rate(WORKERS, by=by), "percentunit", 1, gauge=True, width=110),
        Column("Device in use", ratio(taken, total(slots, by=by)), "percentunit", 0, gauge=True, width=110),
    ]
    return table_of("Workers", about, Rows({"worker": "Worker"}, sort_by="Running"), columns)
