"""Are all workers and gateways there, and how busy is each?"""

from grafana_foundation_sdk.builders import stat, table, timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.colours import BAD, BATCH, CALM, GOOD, QUANTILES, WARNING
from deploy.grafana.page import Page
from deploy.grafana.panels import NONE, Figure, Look, graph, number
from deploy.grafana.processes import GATEWAY_INFO, WORKER_INFO, named_process, of_gateways, of_workers
from deploy.grafana.queries import (
    GATEWAYS,
    WHOLE_RANGE,
    WORKERS,
    Query,
    hit_rate,
    increase,
    mean,
    or_zero,
    quantiles,
    rate,
    ratio,
    series,
    total,
)
from deploy.grafana.tables import Column, Rows, table_of
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
_CONNECTED = series("radixgate_gateway_worker_connected", GATEWAYS)
_YES_OR_NO = {"1": "yes", "0": "NO"}
_MUST_BE_ONE = ((None, BAD), (1, GOOD))
_DAY_S = 86_400
_TLS_OFF = "TLS is off"
_NO_GATEWAY = "No gateway"


def fleet() -> Dashboard:
    about = "Whether all workers and gateways are there, what they run, and how busy each is."
    page = Page("radixgate-fleet", "RadixGate / Fleet", about, ["namespace", "worker"])
    page.add(_workers_up(), _gateways_up(), _links_down(), _stalled_now(), width=3, height=3)
    page.add(_redis(), _versions(), _pauses_now(), _certificate(), width=3, height=3)
    page.row("Who is there")
    page.add(_workers(), width=24, height=7)
    page.add(_gateways(), _links(), width=12, height=6)
    page.row("Load")
    page.add(_running(), _waiting(), _in_flight(), width=8, height=8)
    page.add(_slots(), _namespaces(), _hit_rate(), width=8, height=8)
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
    return number("Links down", about, Query(or_zero(f"count({_CONNECTED} == 0)"), "down"), figure)


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
    figure = Figure("short", 0, _MUST_BE_ONE, {"1": "reachable", "0": "AWAY"}, no_value=_NO_GATEWAY)
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


# ------------------------------------------------------------------------------------------------------- who is there


def _workers() -> table.Panel:
    about = (
        "What each worker runs (`radixgate_worker_info`) and how busy it is (`radixgate_running_sequences`, "
        "`radixgate_waiting_sequences`, `radixgate_slots`, `radixgate_engine_stalled_seconds`, "
        "`process_cpu_seconds_total`, `process_resident_memory_bytes`, and for the hit rate "
        "`radixgate_cached_tokens_total` over `radixgate_prompt_tokens_total`). Workers of one model should show one "
        "revision."
    )
    labels = {
        "worker": "Worker",
        "version": "Version",
        "model": "Model",
        "model_revision": "Revision",
        "device": "Device",
        "number_format": "Numbers",
    }
    used = total(series("radixgate_slots", WORKERS, 'tier="device"', 'state="in_use"'), by=_BY_WORKER)
    slots = total(series("radixgate_slots", WORKERS, 'tier="device"'), by=_BY_WORKER)
    stalled = f"max by (worker) ({series('radixgate_engine_stalled_seconds', WORKERS)})"
    columns = [
        Column("Up", f"sum by ({', '.join(labels)}) ({WORKER_INFO})", "short", shown=False),
        Column("Running", total(series("radixgate_running_sequences", WORKERS), by=_BY_WORKER), "short", 0),
        Column("Waiting", total(series("radixgate_waiting_sequences", WORKERS), by=_BY_WORKER), "short", 0),
        Column("Device in use", ratio(used, slots), "percentunit", 0, gauge=True, width=140),
        Column("Hit rate", hit_rate(WORKERS, by=_BY_WORKER), "percentunit", 1, gauge=True, width=140),
        Column("Stalled", stalled, "s", None, thresholds=((None, GOOD), (10, WARNING), (60, BAD))),
        Column("CPU", of_workers("rate(process_cpu_seconds_total[$__rate_interval])"), "suffix:cores", 2),
        Column("Memory", of_workers("process_resident_memory_bytes"), "bytes", 1),
    ]
    return table_of(
        "Workers", about, Rows(labels, "Worker", widths={"Model": 190, "Revision": 110}, descending=False), columns
    )


def _gateways() -> table.Panel:
    about = (
        "What each gateway runs (`radixgate_gateway_info`), whether it reaches Redis and lets it decide about limits "
        "(`radixgate_gateway_store_reachable`, `radixgate_gateway_quota_store_current`), and what it takes "
        "(`process_cpu_seconds_total`, `process_resident_memory_bytes`)."
    )

    def each(metric: str) -> str:
        return f"sum by (process) ({named_process(series(metric, GATEWAYS))})"

    columns = [
        Column("Up", f"sum by (process, version) ({named_process(GATEWAY_INFO)})", "short", shown=False),
        Column(
            "Redis", each("radixgate_gateway_store_reachable"), "short", 0, thresholds=_MUST_BE_ONE, text=_YES_OR_NO
        ),
        Column(
            "Limits by Redis",
            each("radixgate_gateway_quota_store_current"),
            "short",
            0,
            thresholds=_MUST_BE_ONE,
            text=_YES_OR_NO,
        ),
        Column("CPU", of_gateways("rate(process_cpu_seconds_total[$__rate_interval])"), "suffix:cores", 2),
        Column("Memory", of_gateways("process_resident_memory_bytes"), "bytes", 1),
    ]
    rows = Rows({"process": "Gateway", "version": "Version"}, sort_by="Gateway", descending=False)
    return table_of("Gateways", about, rows, columns)


def _links() -> table.Panel:
    about = (
        "Each worker as gateways see it, by address: gateways connected and not "
        "(`radixgate_gateway_worker_connected`), requests on their way there (`radixgate_gateway_in_flight_requests`), "
        "streams lost in the chosen time (`radixgate_gateway_worker_losses_total`)."
    )
    flying = total(series("radixgate_gateway_in_flight_requests", GATEWAYS), by=_BY_WORKER)
    lost = increase("radixgate_gateway_worker_losses_total", GATEWAYS, by=_BY_WORKER, window=WHOLE_RANGE)
    columns = [
        Column("Connected", total(_CONNECTED, by=_BY_WORKER), "short", 0),
        Column("Not connected", f"sum by (worker) (1 - {_CONNECTED})", "short", 0, thresholds=((None, GOOD), (1, BAD))),
        Column("In flight", flying, "short", 0),
        Column("Lost", lost, "short", 0, no_value="0"),
    ]
    return table_of("Links", about, Rows({"worker": "Worker"}, sort_by="Worker", descending=False), columns)


# --------------------------------------------------------------------------------------------------------------- load


def _by_worker(title: str, about: str, expr: str, look: Look) -> timeseries.Panel:
    return graph(title, about, [Query(expr, "{{worker}}")], look)


def _running() -> timeseries.Panel:
    about = (
        "Sequences that hold slots, by worker (`radixgate_running_sequences`). Workers that differ for long get "
        "different traffic: see In flight and Hit rate."
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
