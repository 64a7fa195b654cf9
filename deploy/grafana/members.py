"""Tables of the fleet: each worker, each gateway, and each worker as gateways see it."""

from grafana_foundation_sdk.builders import table

from deploy.grafana.colours import BAD, GOOD, WARNING
from deploy.grafana.processes import GATEWAY_INFO, WORKER_INFO, named_process, of_gateways, of_workers
from deploy.grafana.queries import GATEWAYS, WHOLE_RANGE, WORKERS, hit_rate, increase, ratio, series, total
from deploy.grafana.tables import Column, Rows, table_of

MUST_BE_ONE = ((None, BAD), (1, GOOD))
CONNECTED = series("radixgate_gateway_worker_connected", GATEWAYS)

_BY_WORKER = ("worker",)
_YES_OR_NO = {"1": "yes", "0": "NO"}


def workers() -> table.Panel:
    about = (
        "What each worker runs (`radixgate_worker_info`) and how busy it is (`radixgate_running_sequences`, "
        "`radixgate_waiting_sequences`, `radixgate_slots`, `radixgate_engine_stalled_seconds`, "
        "`radixgate_worker_registered`, `process_cpu_seconds_total`, `process_resident_memory_bytes`, and for the hit "
        "rate `radixgate_cached_tokens_total` over `radixgate_prompt_tokens_total`). Workers of one model should "
        "show one revision."
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
        Column(
            "Registered",
            f"min by (worker) ({series('radixgate_worker_registered', WORKERS)})",
            "short",
            0,
            thresholds=MUST_BE_ONE,
            text=_YES_OR_NO,
            no_value="–",
        ),
        Column("CPU", of_workers("rate(process_cpu_seconds_total[$__rate_interval])"), "suffix:cores", 2),
        Column("Memory", of_workers("process_resident_memory_bytes"), "bytes", 1),
    ]
    return table_of(
        "Workers", about, Rows(labels, "Worker", widths={"Model": 190, "Revision": 110}, descending=False), columns
    )


def gateways() -> table.Panel:
    about = (
        "What each gateway runs (`radixgate_gateway_info`), whether it reaches Redis and lets it decide about limits "
        "(`radixgate_gateway_store_reachable`, `radixgate_gateway_quota_store_current`), how many workers are "
        "registered and how many it is connected to (`radixgate_gateway_registered_workers`, "
        "`radixgate_gateway_worker_connected`), and what it takes (`process_cpu_seconds_total`, "
        "`process_resident_memory_bytes`)."
    )

    def each(metric: str) -> str:
        return f"sum by (process) ({named_process(series(metric, GATEWAYS))})"

    columns = [
        Column("Up", f"sum by (process, version) ({named_process(GATEWAY_INFO)})", "short", shown=False),
        Column("Redis", each("radixgate_gateway_store_reachable"), "short", 0, thresholds=MUST_BE_ONE, text=_YES_OR_NO),
        Column(
            "Limits by Redis",
            each("radixgate_gateway_quota_store_current"),
            "short",
            0,
            thresholds=MUST_BE_ONE,
            text=_YES_OR_NO,
        ),
        Column("Registered", each("radixgate_gateway_registered_workers"), "short", 0, no_value="–"),
        Column("Connected", each("radixgate_gateway_worker_connected"), "short", 0, no_value="0"),
        Column("CPU", of_gateways("rate(process_cpu_seconds_total[$__rate_interval])"), "suffix:cores", 2),
        Column("Memory", of_gateways("process_resident_memory_bytes"), "bytes", 1),
    ]
    rows = Rows(
        {"process": "Gateway", "version": "Version"},
        sort_by="Gateway",
        widths={"Gateway": 150, "Version": 70},
        descending=False,
    )
    return table_of("Gateways", about, rows, columns)


def links() -> table.Panel:
    about = (
        "Each worker as gateways see it, by address: gateways connected and not "
        "(`radixgate_gateway_worker_connected`), requests on their way there (`radixgate_gateway_in_flight_requests`), "
        "streams lost in the chosen time (`radixgate_gateway_worker_losses_total`)."
    )
    flying = total(series("radixgate_gateway_in_flight_requests", GATEWAYS), by=_BY_WORKER)
    lost = increase("radixgate_gateway_worker_losses_total", GATEWAYS, by=_BY_WORKER, window=WHOLE_RANGE)
    columns = [
        Column("Connected", total(CONNECTED, by=_BY_WORKER), "short", 0),
        Column("Not connected", f"sum by (worker) (1 - {CONNECTED})", "short", 0, thresholds=((None, GOOD), (1, BAD))),
        Column("In flight", flying, "short", 0),
        Column("Lost", lost, "short", 0, no_value="0"),
    ]
    return table_of("Links", about, Rows({"worker": "Worker"}, sort_by="Worker", descending=False), columns)
