"""Panels about what moves between tiers: copies of device and host, and pages of the store."""

from grafana_foundation_sdk.builders import timeseries

from deploy.grafana.colours import COPIES, FAULTS, PAGES, TIERS, Colours
from deploy.grafana.panels import Look, graph
from deploy.grafana.queries import WORKERS, Query, quantile, rate, ratio, series
from deploy.grafana.shared import TOKENS_PER_SECOND

_COPY_SECONDS = {
    "mirror": "radixgate_mirror_seconds",
    "load back": "radixgate_load_back_seconds",
    "prefetch": "radixgate_prefetch_seconds",
    "save": "radixgate_save_seconds",
}
_COPY_STEMS = {"mirror": "mirrored", "load back": "loaded_back", "prefetch": "prefetched"}
FAULT_COUNTERS = {
    "mirror failed": "radixgate_mirror_failures_total",
    "load back failed": "radixgate_load_back_failures_total",
    "copy stalled": "radixgate_copy_stalls_total",
    "prefetch failed": "radixgate_prefetch_failures_total",
    "prefetch late": "radixgate_late_prefetches_total",
    "save failed": "radixgate_save_failures_total",
}


def tokens_moved() -> timeseries.Panel:
    about = (
        "Tokens copied per second: device to host (mirror, `radixgate_mirrored_tokens_total`), host to device (load "
        "back, `radixgate_loaded_back_tokens_total`), storage to host (prefetch, `radixgate_prefetched_tokens_total`). "
        "Much more mirrored than ever comes back is the price of write-back; `write_policy` makes it pickier."
    )
    queries = [
        Query(f"{rate(f'radixgate_{stem}_tokens_total', WORKERS)} > 0", kind) for kind, stem in _COPY_STEMS.items()
    ]
    return graph("Tokens copied", about, queries, Look(TOKENS_PER_SECOND, _only(COPIES, _COPY_STEMS)))


def bytes_moved() -> timeseries.Panel:
    about = (
        "Bytes copied per second (`radixgate_mirrored_bytes_total`, `radixgate_loaded_back_bytes_total`, "
        "`radixgate_prefetched_bytes_total`). Compare with what the link between device and host can carry."
    )
    queries = [
        Query(f"{rate(f'radixgate_{stem}_bytes_total', WORKERS)} > 0", kind) for kind, stem in _COPY_STEMS.items()
    ]
    return graph("Bytes copied", about, queries, Look("Bps", _only(COPIES, _COPY_STEMS)))


def speed() -> timeseries.Panel:
    about = (
        "How fast copies are while they run: bytes (as above) over the seconds that copies took "
        "(`radixgate_mirrored_bytes_total`, `radixgate_loaded_back_bytes_total` and `radixgate_prefetched_bytes_total` "
        "over `radixgate_mirror_seconds`, `radixgate_load_back_seconds`, `radixgate_prefetch_seconds`). A pool that is "
        "not pinned, or a busy store, shows here."
    )
    queries = [
        Query(
            ratio(rate(f"radixgate_{stem}_bytes_total", WORKERS), rate(f"{_COPY_SECONDS[kind]}_sum", WORKERS)) + " > 0",
            kind,
        )
        for kind, stem in _COPY_STEMS.items()
    ]
    return graph("Speed of copies", about, queries, Look("Bps", _only(COPIES, _COPY_STEMS)))


def _speed_of(stem: str, histogram: str) -> str:
    return ratio(rate(f"radixgate_{stem}_bytes_total", WORKERS), rate(f"{histogram}_sum", WORKERS))


def durations(q: float) -> timeseries.Panel:
    half = q == 0.5
    about = (
        f"{'Half' if half else '99 of 100'} of single copies and batches take no longer than this "
        "(`radixgate_mirror_seconds`, `radixgate_load_back_seconds`, `radixgate_prefetch_seconds`, "
        "`radixgate_save_seconds`). Load backs and prefetches are in the way of a first token; mirrors and saves are "
        "not."
    )
    queries = [Query(quantile(q, histogram, WORKERS), kind) for kind, histogram in _COPY_SECONDS.items()]
    return graph(f"Time of one copy, p{q * 100:g}", about, queries, Look("s", COPIES))


def copy_faults() -> timeseries.Panel:
    counters = ", ".join(f"`{metric}`" for metric in FAULT_COUNTERS.values())
    about = (
        f"Copies that went wrong, per second: {counters}. Requests go on and compute what is missing. Failures of "
        "copies are a matter for the device, of prefetches and saves for the store."
    )
    queries = [Query(rate(metric, WORKERS), kind) for kind, metric in FAULT_COUNTERS.items()]
    return graph("Copies that failed", about, queries, Look("ops", FAULTS, smallest_top=1))


def stored() -> timeseries.Panel:
    about = (
        "Bytes that the store holds, of all workers (`radixgate_storage_bytes`; the largest that a worker reports, "
        "since they share it). It grows to its bound and then drops the oldest. No traffic here means that no storage "
        "is configured."
    )
    stored = f"max by (store) ({series('radixgate_storage_bytes', WORKERS)})"
    look = Look("bytes", dict.fromkeys(("file", "redis"), TIERS["storage"]))
    return graph("Stored", about, [Query(stored, "{{store}}")], look)


def pages() -> timeseries.Panel:
    about = (
        "Pages per second: saved, skipped because too many were waiting, read, found missing or corrupt when read, and "
        "dropped for the bound (`radixgate_storage_evicted_pages_total`, `radixgate_saved_pages_total`, "
        "`radixgate_skipped_save_pages_total`, `radixgate_storage_found_pages_total`, "
        "`radixgate_storage_missing_pages_total`, `radixgate_storage_corrupt_pages_total`). Skipped ones mean a slow "
        "store; corrupt ones a broken one."
    )
    metrics = {
        "saved": "radixgate_saved_pages_total",
        "read": "radixgate_storage_found_pages_total",
        "skipped": "radixgate_skipped_save_pages_total",
        "missing": "radixgate_storage_missing_pages_total",
        "corrupt": "radixgate_storage_corrupt_pages_total",
        "dropped": "radixgate_storage_evicted_pages_total",
    }
    queries = [Query(f"{rate(metric, WORKERS)} > 0", kind) for kind, metric in metrics.items()]
    return graph("Pages", about, queries, Look("count:pages/s", PAGES))


def prefetch_hits() -> timeseries.Panel:
    about = (
        "Of the tokens that storage was asked for, the share it had (`radixgate_prefetched_tokens_total` over "
        "`radixgate_prefetch_sought_tokens_total`), by worker. Little means that prompts are new, or that pages were "
        "dropped or expired."
    )
    found = ratio(
        rate("radixgate_prefetched_tokens_total", WORKERS, by=("worker",)),
        rate("radixgate_prefetch_sought_tokens_total", WORKERS, by=("worker",)),
    )
    look = Look("percentunit", top=1, decimals=0)
    return graph("Hit rate of storage", about, [Query(found, "{{worker}}")], look)


def _only(colours: Colours, names: Colours) -> dict[str, str]:
    return {name: colours[name] for name in names}
