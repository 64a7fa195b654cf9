"""Are all workers and gateways there, and how busy is each?"""

from grafana_foundation_sdk.builders import stat, timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.colours import BAD, BATCH, CALM, GOOD, QUANTILES, WARNING
from deploy.grafana.failover import (
    breakers,
    breakers_now,
    continued,
    membership,
    moves,
    moves_now,
    refused_moves,
    shed,
)
from deploy.grafana.members import CONNECTED, MUST_BE_ONE, gateways, links, workers
from deploy.grafana.page import Page
from deploy.grafana.panels import NONE, Figure, Look, graph, number
from deploy.grafana.processes import GATEWAY_INFO, WORKER_INFO
from deploy.grafana.queries import (
    GATEWAYS,
    WORKERS,
    Query,
    hit_rate,
    mean,
    or_zero,
    quantiles,
    rate,
    ratio,
    series,
    total,
)
from deploy.grafana.routing import (
    choices,
    computed,
    evenness_now,
    events,
    expectations,
    known_pages,
    right_now,
    unreached_now,
    upkeep,
)
from deploy.grafana.trouble import (
    adapter_bytes,
    adapter_loads,
    certificates,
    cpu,
    cut_floors,
    losses,
    memory,
    pauses,
    resident_adapters,
    stalled,
    undertakings,
    unsettled,
    usage_log,
)

_BY_WORKER = ("worker",)
_DAY_S = 86_400
_TLS_OFF = "TLS is off"
_NO_GATEWAY = "No gateway"


def fleet() -> Dashboard:
    about = "Whether all workers and gateways are there, what they run, and how busy each is."
    page = Page("radixgate-fleet", "RadixGate / Fleet", about, ["namespace", "worker"])
    page.add(_workers_up(), _gateways_up(), _links_down(), _stalled_now(), width=3, height=3)
    page.add(_redis(), _versions(), _pauses_now(), _certificate(), width=3, height=3)
    page.add(right_now(), evenness_now(), moves_now(), width=6, height=3)
    page.add(breakers_now(), unreached_now(), width=3, height=3)
    page.row("Who is there")
    page.add(workers(), width=24, height=7)
    page.add(gateways(), links(), width=12, height=6)
    page.row("Load")
    page.add(_running(), _waiting(), _in_flight(), width=8, height=8)
    page.add(_slots(), _namespaces(), _hit_rate(), width=8, height=8)
    page.row("Where requests go")
    page.add(choices(), computed(), expectations(), width=8, height=8)
    page.row("What gateways know of caches")
    page.add(known_pages(), events(), upkeep(), width=8, height=8)
    page.row("When workers fail")
    page.add(moves(), continued(), refused_moves(), width=8, height=7)
    page.add(breakers(), shed(), membership(), width=8, height=7)
    page.row("Steps")
    page.add(_step_time(), _batch(), _inter_token(), width=8, height=8)
    page.row("Trouble")
    page.add(stalled(), pauses(), losses(), width=8, height=7)
    page.add(undertakings(), cut_floors(), unsettled(), usage_log(), width=6, height=7)
    page.row("Adapters")
    page.add(resident_adapters(), adapter_bytes(), adapter_loads(), width=8, height=7)
    page.row("Processes")
    page.add(cpu(), memory(), certificates(), width=8, height=8)
    return page.build()


# ------------------------------------------------------------------------------------------------------------ at once


def _workers_up() -> stat.Panel:
    about = "Workers that Prometheus reaches (`radixgate_worker_info`). Compare with how many there should be."
    figure = Figure("short", 0, ((None, BAD), (1, CALM)), no_value=NONE)
    return number("Workers", about, Query(f"count({WORKER_INFO})", "workers"), figure)


def _gateways_up() -> stat.Panel:
    about = "Gateways that Prometheus reaches (`radixgate_gateway_info`). Compare with how many there should be."
    figure = Figure("short", 0, ((None, BAD), (1, CALM)), no_value=NONE)
    return number("Gateways", about, Query(f"count({GATEWAY_INFO})", "gateways"), figure)


def _links_down() -> stat.Panel:
    about = (
        "Streams from a gateway to a worker that are down (`radixgate_gateway_worker_connected` is 0). The table Links "
        "names them. One gateway alone: its network. All of them: the worker."
    )
    figure = Figure("short", 0, ((None, GOOD), (1, BAD)), {"0": NONE})
    return number("Links down", about, Query(or_zero(f"count({CONNECTED} == 0)"), "down"), figure)


def _stalled_now() -> stat.Panel:
    about = (
        "The longest that a worker has had work and not moved (`radixgate_engine_stalled_seconds`). Beyond a minute it "
        "is stuck and wants a restart; Kubernetes does that by itself after `worker.stall_limit_s`."
    )
    figure = Figure("s", None, ((None, GOOD), (10, WARNING), (60, BAD)), {"0": NONE})
    stalled = f"max({series('radixgate_engine_stalled_seconds', WORKERS)})"
    return number("Stalled", about, Query(stalled, "stalled"), figure)


def _redis() -> stat.Panel:
    about = (
        "Whether every gateway reaches Redis (`radixgate_gateway_store_reachable`). Without it gateways decide about "
        "limits alone and serve the keys that they know; nothing can be administered."
    )
    figure = Figure("short", 0, MUST_BE_ONE, {"1": "reachable", "0": "AWAY"}, no_value=_NO_GATEWAY)
    reachable = f"min({series('radixgate_gateway_store_reachable', GATEWAYS)})"
    return number("Redis", about, Query(reachable, "Redis"), figure)


def _versions() -> stat.Panel:
    about = (
        "How many versions run side by side (`radixgate_worker_info`, `radixgate_gateway_info`). More than one is "
        "normal during an update and at no other time."
    )
    both = f"count by (version) ({WORKER_INFO} or {GATEWAY_INFO})"
    figure = Figure("short", 0, ((None, CALM), (2, WARNING)))
    return number("Versions", about, Query(f"count({both})", "versions"), figure)


def _pauses_now() -> stat.Panel:
    about = (
        "Running sequences per second that gave up their slots for others (`radixgate_pauses_total`). Some are normal "
        "under load; many mean too few slots, or `max_running` too high."
    )
    figure = Figure("ops", 2, ((None, GOOD), (0.1, WARNING), (1, BAD)), {"0": NONE})
    return number("Pauses", about, Query(or_zero(rate("radixgate_pauses_total", WORKERS)), "pauses"), figure)


def _certificate() -> stat.Panel:
    about = (
        "Until the first certificate expires (`radixgate_certificate_expiry_timestamp_seconds`, "
        "`radixgate_gateway_certificate_expiry_timestamp_seconds`). Processes take up new files by themselves, so a "
        "short time means that nobody renews them."
    )
    workers = series("radixgate_certificate_expiry_timestamp_seconds", WORKERS)
    gateways = series("radixgate_gateway_certificate_expiry_timestamp_seconds", GATEWAYS)
    figure = Figure("s", None, ((None, BAD), (7 * _DAY_S, WARNING), (14 * _DAY_S, GOOD)), no_value=_TLS_OFF)
    return number("Certificate", about, Query(f"min({workers} or {gateways}) - time()", "left"), figure)


# --------------------------------------------------------------------------------------------------------------- load


def _by_worker(title: str, about: str, expr: str, look: Look) -> timeseries.Panel:
    return graph(title, about, [Query(expr, "{{worker}}")], look)


def _running() -> timeseries.Panel:
    about = (
        "Sequences that hold slots, by worker (`radixgate_running_sequences`). Workers that differ for long get "
        "different traffic: see In flight, Hit rate and Choices."
    )
    expr = total(series("radixgate_running_sequences", WORKERS), by=_BY_WORKER)
    return _by_worker("Running", about, expr, Look("short", decimals=0, smallest_top=4))


def _waiting() -> timeseries.Panel:
    about = (
        "Sequences that wait for their turn, by worker, paused ones included (`radixgate_waiting_sequences`). A line "
        "that never comes down means that the fleet is too small; scaling follows this."
    )
    expr = total(series("radixgate_waiting_sequences", WORKERS), by=_BY_WORKER)
    return _by_worker("Waiting", about, expr, Look("short", decimals=0, smallest_top=4))


def _in_flight() -> timeseries.Panel:
    about = (
        "Requests that gateways have under way, by worker's address (`radixgate_gateway_in_flight_requests`, all "
        "gateways together). One far above the others is a hot worker: many share its prefix."
    )
    expr = total(series("radixgate_gateway_in_flight_requests", GATEWAYS), by=_BY_WORKER)
    return _by_worker("In flight", about, expr, Look("short", decimals=0, smallest_top=4))


def _slots() -> timeseries.Panel:
    about = (
        "Share of each worker's device slots that running sequences use (`radixgate_slots`). Near 100 % sequences wait "
        "or are paused."
    )
    used = total(series("radixgate_slots", WORKERS, 'tier="device"', 'state="in_use"'), by=_BY_WORKER)
    slots = total(series("radixgate_slots", WORKERS, 'tier="device"'), by=_BY_WORKER)
    return _by_worker("Device slots in use", about, ratio(used, slots), Look("percentunit", top=1, decimals=0))


def _namespaces() -> timeseries.Panel:
    about = (
        "Namespaces that each worker's tree holds (`radixgate_cache_namespaces`): one for each tenant, adapter "
        "revision and cache version that has something cached."
    )
    expr = total(series("radixgate_cache_namespaces", WORKERS), by=_BY_WORKER)
    return _by_worker("Namespaces", about, expr, Look("short", decimals=0))


def _hit_rate() -> timeseries.Panel:
    about = (
        "Share of prompt tokens found in the cache, by worker (`radixgate_cached_tokens_total` over "
        "`radixgate_prompt_tokens_total`). One that stays below the others has just started, or gets what is new."
    )
    return _by_worker("Hit rate", about, hit_rate(WORKERS, by=_BY_WORKER), Look("percentunit", top=1, decimals=0))


# -------------------------------------------------------------------------------------------------------------- steps


def _step_time() -> timeseries.Panel:
    about = (
        "How long one forward pass takes (`radixgate_step_seconds`). Every running sequence waits that long for its "
        "next token; `max_step_tokens` bounds it."
    )
    return graph("Step time", about, quantiles("radixgate_step_seconds", WORKERS), Look("s", QUANTILES))


def _batch() -> timeseries.Panel:
    about = (
        "Tokens and sequences in a forward pass, on average (`radixgate_step_tokens`, `radixgate_step_sequences`). "
        "More tokens than sequences is prefill; small passes waste a GPU."
    )
    queries = [
        Query(mean("radixgate_step_tokens", WORKERS), "tokens"),
        Query(mean("radixgate_step_sequences", WORKERS), "sequences"),
    ]
    return graph("Size of steps", about, queries, Look("short", BATCH, decimals=1))


def _inter_token() -> timeseries.Panel:
    about = "Between two tokens of a sequence (`radixgate_inter_token_seconds`): how fast text appears to a reader."
    return graph(
        "Time between tokens", about, quantiles("radixgate_inter_token_seconds", WORKERS), Look("s", QUANTILES)
    )
