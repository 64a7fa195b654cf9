"""Panels of the fleet about what should not happen, and about what processes take."""

from grafana_foundation_sdk.builders import timeseries

from deploy.grafana.colours import BAD, BLUE, QUANTILES
from deploy.grafana.panels import NONE, Look, graph
from deploy.grafana.processes import of_gateways, of_workers
from deploy.grafana.queries import GATEWAYS, WORKERS, Query, quantiles, rate, series, total

_BY_WORKER = ("worker",)


def stalled() -> timeseries.Panel:
    about = (
        "For how long a worker has had work and not moved (`radixgate_engine_stalled_seconds`). A peak of seconds is "
        "one long step; a line that climbs is a worker that is stuck."
    )
    expr = f"max by (worker) ({series('radixgate_engine_stalled_seconds', WORKERS)})"
    return graph("Stalled", about, [Query(expr, "{{worker}}")], Look("s", smallest_top=1))


def pauses() -> timeseries.Panel:
    about = (
        "Running sequences that gave up their slots for others, per second (`radixgate_pauses_total`). What was "
        "evicted meanwhile is computed again. Lower `max_running`, or give the device more slots."
    )
    expr = f"{rate('radixgate_pauses_total', WORKERS, by=_BY_WORKER)} > 0"
    return graph("Pauses", about, [Query(expr, "{{worker}}")], Look("ops", no_value=NONE))


def losses() -> timeseries.Panel:
    about = (
        "Streams from gateways to a worker that went down, per second, by worker's address "
        "(`radixgate_gateway_worker_losses_total`). Each makes its requests go on elsewhere: see Moves."
    )
    expr = f"{rate('radixgate_gateway_worker_losses_total', GATEWAYS, by=_BY_WORKER)} > 0"
    return graph("Streams lost", about, [Query(expr, "{{worker}}")], Look("ops", no_value=NONE))


def undertakings() -> timeseries.Panel:
    about = (
        "What operators asked for and is not brought about on all workers yet, by kind "
        "(`radixgate_gateway_pending_undertakings`; the largest number of any gateway). It falls to zero within "
        "seconds; what stays waits for a worker that is away, or fails: see the gateways' logs."
    )
    expr = f"max by (kind) ({series('radixgate_gateway_pending_undertakings', GATEWAYS)})"
    return graph("Pending changes", about, [Query(expr, "{{kind}}")], Look("short", decimals=0, smallest_top=1))


def cut_floors() -> timeseries.Panel:
    about = (
        "Tokens of floors that policies promise to tenants and a worker cannot grant, because all of them together do "
        "not fit (`radixgate_cut_floor_tokens`). Anything above zero: promise less, or give workers more slots."
    )
    expr = total(series("radixgate_cut_floor_tokens", WORKERS), by=_BY_WORKER)
    return graph(
        "Floors not granted", about, [Query(expr, "{{worker}}")], Look("count:tok", decimals=0, smallest_top=1)
    )


def usage_log() -> timeseries.Panel:
    about = (
        "Lines of the usage log that wait to be written, and those that a gateway could not write and has lost "
        "(`radixgate_gateway_usage_log_waiting_lines`, `radixgate_gateway_usage_log_lost_lines_total`). Bills made "
        "from the log lack the lost ones: look at the disk that it goes to."
    )
    waiting = total(series("radixgate_gateway_usage_log_waiting_lines", GATEWAYS))
    lost = total(series("radixgate_gateway_usage_log_lost_lines_total", GATEWAYS))
    look = Look("short", {"waiting": BLUE, "lost since the start": BAD}, decimals=0, smallest_top=1)
    return graph("Usage log", about, [Query(waiting, "waiting"), Query(lost, "lost since the start")], look)


def unsettled() -> timeseries.Panel:
    about = (
        "Requests that have ended and that Redis has yet to be told of (`radixgate_gateway_unsettled_requests`). It "
        "grows while Redis is away and empties afterwards; a gateway that ends before that loses the rest."
    )
    expr = total(series("radixgate_gateway_unsettled_requests", GATEWAYS))
    look = Look("short", {"unsettled": BLUE}, decimals=0, smallest_top=1)
    return graph("Unsettled requests", about, [Query(expr, "unsettled")], look)


def resident_adapters() -> timeseries.Panel:
    about = (
        "Adapters that lie on the device of each worker (`radixgate_resident_adapters`). When it stays at the number "
        "of places and loads go on, adapters push each other out: more places, or fewer adapters on one worker."
    )
    expr = total(series("radixgate_resident_adapters", WORKERS), by=_BY_WORKER)
    return graph("Resident adapters", about, [Query(expr, "{{worker}}")], Look("short", decimals=0, smallest_top=1))


def adapter_bytes() -> timeseries.Panel:
    about = "Memory that weights of adapters take on each worker's host (`radixgate_adapter_host_bytes`)."
    expr = total(series("radixgate_adapter_host_bytes", WORKERS), by=_BY_WORKER)
    return graph("Memory of adapters", about, [Query(expr, "{{worker}}")], Look("bytes"))


def adapter_loads() -> timeseries.Panel:
    about = (
        "How long adapters take to come to the device (`radixgate_adapter_load_seconds`), where any came. Their "
        "requests wait that long. Failures count in `radixgate_adapter_load_failures_total` and raise an alert."
    )
    queries = quantiles("radixgate_adapter_load_seconds", WORKERS)
    return graph("Time to load an adapter", about, queries, Look("s", QUANTILES, no_value=NONE))


def cpu() -> timeseries.Panel:
    about = (
        "Processor cores that each process uses (`process_cpu_seconds_total`). A gateway near one core is at its end: "
        "it runs on one event loop, so add another."
    )
    return _of_processes(
        "CPU", about, "rate(process_cpu_seconds_total[$__rate_interval])", Look("suffix:cores", decimals=2)
    )


def memory() -> timeseries.Panel:
    about = (
        "Memory of each process (`process_resident_memory_bytes`). A worker's holds the model and the host pool from "
        "its start; growth after that is not normal."
    )
    return _of_processes("Memory", about, "process_resident_memory_bytes", Look("bytes"))


def certificates() -> timeseries.Panel:
    about = (
        "Certificate files that were taken up, and changed ones that could not be used, per second "
        "(`radixgate_certificate_loads_total`, `radixgate_gateway_certificate_loads_total`). Anything but `ok` leaves "
        "the old certificate in use until it expires."
    )
    queries = [
        Query(f"{rate('radixgate_certificate_loads_total', WORKERS, by=('outcome',))} > 0", "workers: {{outcome}}"),
        Query(
            f"{rate('radixgate_gateway_certificate_loads_total', GATEWAYS, by=('outcome',))} > 0",
            "gateways: {{outcome}}",
        ),
    ]
    return graph("Certificates taken up", about, queries, Look("ops", no_value=NONE))


def _of_processes(title: str, about: str, expr: str, look: Look) -> timeseries.Panel:
    queries = [Query(of_workers(expr), "{{worker}}"), Query(of_gateways(expr), "gateway {{process}}")]
    return graph(title, about, queries, look)
