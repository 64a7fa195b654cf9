"""Panels about requests whose worker fails, and about workers that get none."""

from grafana_foundation_sdk.builders import stat, timeseries

from deploy.grafana.colours import BAD, BLUE, CAUSES, GOOD, ORANGE, WARNING
from deploy.grafana.panels import NONE, Figure, Look, graph, number
from deploy.grafana.queries import GATEWAYS, WORKERS, Query, moving, or_zero, quantile, rate, series

_MOVES = "radixgate_gateway_moves_total"
_REFUSED = "radixgate_gateway_moves_refused_total"
_BREAKER = "radixgate_gateway_worker_breaker_state"


def moves_now() -> stat.Panel:
    about = (
        f"Requests per second that go on at another worker (`{_MOVES}`). Their clients notice a pause. Some are normal "
        "while workers are restarted; else see Moves for the cause."
    )
    figure = Figure("ops", 2, ((None, GOOD), (0.1, WARNING)), {"0": NONE})
    return number("Moves", about, Query(or_zero(rate(_MOVES, GATEWAYS)), "moves"), figure)


def breakers_now() -> stat.Panel:
    about = (
        f"Workers that get no requests because they fail on them (`{_BREAKER}` above 0), each counted once for each "
        "gateway that says so. Breakers, below, names them."
    )
    opened = or_zero(f"count({series(_BREAKER, GATEWAYS)} > 0)")
    return number("Breakers", about, Query(opened, "open"), Figure("short", 0, ((None, GOOD), (1, BAD)), {"0": NONE}))


def moves() -> timeseries.Panel:
    about = (
        f"Requests per second that go on at another worker, by what became of the last one (`{_MOVES}`): lost, silent "
        "or stalled, failed on the request, shutting down, or full. Shutting down is an update; the others want a look."
    )
    expr = moving(rate(_MOVES, GATEWAYS, by=("cause",)))
    return graph("Moves", about, [Query(expr, "{{cause}}")], Look("ops", CAUSES, stacked=True, no_value=NONE))


def refused_moves() -> timeseries.Panel:
    about = (
        f"Requests per second that end with their worker because they cannot go on elsewhere, by what is in the way "
        f"(`{_REFUSED}`). Their clients see an error. `no_worker`: run two of each model; the runbook has the others."
    )
    expr = moving(rate(_REFUSED, GATEWAYS, by=("why",)))
    return graph("Moves that could not be", about, [Query(expr, "{{why}}")], Look("ops", no_value=NONE))


def shed() -> timeseries.Panel:
    about = (
        "Requests per second that were refused because all workers are busy (`radixgate_gateway_shed_requests_total`), "
        "and how long requests waited for a worker where there was none, 95 of 100 "
        "(`radixgate_gateway_worker_wait_seconds`). Either for long means that there are too few workers."
    )
    waited = quantile(0.95, "radixgate_gateway_worker_wait_seconds", GATEWAYS)
    queries = [
        Query(moving(rate("radixgate_gateway_shed_requests_total", GATEWAYS, by=("reason",))), "{{reason}}"),
        Query(waited, "wait for a worker, s"),
    ]
    look = Look("short", {"overloaded": ORANGE, "expected_wait": BLUE}, no_value=NONE)
    return graph("Refused for want of room", about, queries, look)


def breakers() -> timeseries.Panel:
    about = (
        f"Breaker of each worker, by address (`{_BREAKER}`, the worst of all gateways): 0 requests go there, 1 one "
        "may, to see, 2 none do because it fails too often. And how often per second a worker stood still with work "
        "before it, so that its streams moved (`radixgate_gateway_worker_stalls_total`)."
    )
    queries = [
        Query(f"max by (worker) ({series(_BREAKER, GATEWAYS)})", "{{worker}}"),
        Query(moving(rate("radixgate_gateway_worker_stalls_total", GATEWAYS, by=("worker",))), "{{worker}} stalls"),
    ]
    return graph("Breakers", about, queries, Look("short", decimals=1, smallest_top=2, no_value=NONE))


def membership() -> timeseries.Panel:
    about = (
        "Workers that came and went, as gateways found them in the registry, per second "
        "(`radixgate_gateway_worker_changes_total`), and entries that workers made or could not make "
        "(`radixgate_worker_registrations_total` other than `ok`). Where gateways have a list of workers there is "
        "nothing."
    )
    failed = rate("radixgate_worker_registrations_total", WORKERS, 'outcome!="ok"', by=("outcome",))
    queries = [
        Query(moving(rate("radixgate_gateway_worker_changes_total", GATEWAYS, by=("change",))), "{{change}}"),
        Query(moving(failed), "entries: {{outcome}}"),
    ]
    return graph("Coming and going", about, queries, Look("ops", no_value=NONE))


def continued() -> timeseries.Panel:
    about = (
        "Tokens per second with which sequences came that were begun elsewhere, prompt included, by where they were "
        "found or that they were computed once more (`radixgate_continued_tokens_total`; the sequences themselves are "
        "`radixgate_continued_sequences_total`). Computed ones are what moving costs."
    )
    queries = [
        Query(moving(rate("radixgate_continued_tokens_total", WORKERS, by=("source",))), "{{source}}"),
        Query(moving(rate("radixgate_continued_sequences_total", WORKERS)), "sequences"),
    ]
    return graph("Continued here", about, queries, Look("short", no_value=NONE))
