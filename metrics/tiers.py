"""What a worker shows of the tiers below the device: host slots, copies, and storage. Imports nothing of the cache."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client import Counter, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from metrics.registry import COPY_BUCKETS, MetricFamilies

# Counters by the name of the total in the statistics they follow.
_TOTALS = {
    "mirrored_tokens": ("radixgate_mirrored_tokens_total", "Tokens copied from device to host"),
    "loaded_tokens": ("radixgate_loaded_back_tokens_total", "Tokens copied from host to device"),
    "lost_tokens": (
        "radixgate_dropped_mirror_tokens_total",
        "Tokens evicted from the device unmirrored",
    ),
    "mirror_failures": ("radixgate_mirror_failures_total", "Copies from device to host that failed"),
    "load_failures": ("radixgate_load_back_failures_total", "Copies from host to device that failed"),
    "stalls": ("radixgate_copy_stalls_total", "Copies given up because they took too long"),
    "declined_loads": ("radixgate_declined_load_backs_total", "Hits on the host that were cheaper to compute again"),
    "fetched_tokens": ("radixgate_prefetched_tokens_total", "Tokens brought from storage to the host"),
    "failed_fetches": ("radixgate_prefetch_failures_total", "Prefetches that storage did not answer"),
    "sought_tokens": (
        "radixgate_prefetch_sought_tokens_total",
        "Tokens that storage was asked for; those it had are radixgate_prefetched_tokens_total",
    ),
    "late_fetches": ("radixgate_late_prefetches_total", "Prefetches given up because they took too long"),
    "saved_pages": ("radixgate_saved_pages_total", "Pages that went to storage, or were there already"),
    "failed_saves": ("radixgate_save_failures_total", "Batches of pages that storage did not take"),
    "skipped_saves": ("radixgate_skipped_save_pages_total", "Pages not saved because too many were waiting"),
}
# Counters of bytes, by the total of tokens that they follow.
_BYTES = {
    "mirrored_tokens": ("radixgate_mirrored_bytes_total", "Bytes copied from device to host"),
    "loaded_tokens": ("radixgate_loaded_back_bytes_total", "Bytes copied from host to device"),
    "fetched_tokens": ("radixgate_prefetched_bytes_total", "Bytes brought from storage to the host"),
}
# Histograms of single copies, by the name of their durations.
_DURATIONS = {
    "mirrors": ("radixgate_mirror_seconds", "How long single copies from device to host took"),
    "load_backs": ("radixgate_load_back_seconds", "How long single copies from host to device took"),
    "prefetches": ("radixgate_prefetch_seconds", "How long the store took for single look-ups and reads of pages"),
    "saves": ("radixgate_save_seconds", "How long the store took to write single batches of pages"),
}

WITH_HOST = "with a host tier"
WITH_STORAGE = "with storage"


class TierStats(Protocol):
    """Totals since the start, and what is where now."""

    @property
    def host_slots(self) -> int: ...
    @property
    def host_free_slots(self) -> int: ...
    @property
    def host_cached_slots(self) -> int: ...
    @property
    def settled_slots(self) -> int: ...
    @property
    def host_lost_tokens(self) -> int: ...
    @property
    def fetch_reserved_bytes(self) -> int: ...


class CopyDurations(Protocol):
    """How long single copies took, in seconds."""

    @property
    def mirrors(self) -> Sequence[float]: ...
    @property
    def load_backs(self) -> Sequence[float]: ...
    @property
    def prefetches(self) -> Sequence[float]: ...
    @property
    def saves(self) -> Sequence[float]: ...


class TierMetrics:
    """Follows the statistics of one worker's cache."""

    def __init__(
        self, families: MetricFamilies, worker: str, evicted: Counter, slots: Mapping[str, Gauge], bytes_per_token: int
    ) -> None:
        """`evicted` and `slots` (free, evictable, in_use) are those of the host tier."""
        self._evicted = evicted
        self._slots = slots
        self._bytes_per_token = bytes_per_token
        self._counters = _counters(families, worker, _TOTALS)
        self._bytes = _counters(families, worker, _BYTES)
        self._durations = {
            kind: families.histogram(name, text, COPY_BUCKETS, when=WITH_HOST).labels(worker)
            for kind, (name, text) in _DURATIONS.items()
        }
        self._seen: dict[str, float] = dict.fromkeys((*_TOTALS, "host_lost_tokens"), 0.0)
        self._settled = families.gauge(
            "radixgate_settled_slots",
            "Device slots whose content the host has, and that can be reused at once",
            when=WITH_HOST,
        ).labels(worker)
        self._reserved = families.gauge(
            "radixgate_prefetch_reserved_bytes",
            "Bytes that prefetches under way may bring to the host",
            when=WITH_HOST,
        ).labels(worker)

    def changed(self, stats: TierStats) -> None:
        for total, counter in self._counters.items():
            growth = self._growth(stats, total)
            counter.inc(growth)
            if total in self._bytes:
                self._bytes[total].inc(growth * self._bytes_per_token)
        self._evicted.inc(self._growth(stats, "host_lost_tokens"))
        self._slots["free"].set(stats.host_free_slots)
        self._slots["evictable"].set(stats.host_cached_slots)
        self._slots["in_use"].set(stats.host_slots - stats.host_free_slots - stats.host_cached_slots)
        self._settled.set(stats.settled_slots)
        self._reserved.set(stats.fetch_reserved_bytes)

    def copied(self, durations: CopyDurations) -> None:
        for kind, histogram in self._durations.items():
            for seconds in getattr(durations, kind):
                histogram.observe(seconds)

    def _growth(self, stats: TierStats, total: str) -> float:
        now = float(getattr(stats, total))
        growth = max(0.0, now - self._seen[total])
        self._seen[total] = now
        return growth


def _counters(families: MetricFamilies, worker: str, named: Mapping[str, tuple[str, str]]) -> dict[str, Counter]:
    return {total: families.counter(name, text, when=WITH_HOST).labels(worker) for total, (name, text) in named.items()}


class StoreStats(Protocol):
    """Figures of a store of pages."""

    @property
    def num_pages(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def found(self) -> int: ...
    @property
    def missing(self) -> int: ...
    @property
    def corrupt(self) -> int: ...
    @property
    def evicted(self) -> int: ...


class PageStore(Protocol):
    """A store that can be asked from any thread."""

    @property
    def name(self) -> str: ...

    def stats(self) -> StoreStats: ...


class StoreCollector(Collector):
    """Shows a store's figures when somebody looks."""

    def __init__(self, store: PageStore, worker: str) -> None:
        self._store = store
        self._labels = (worker, store.name)

    def describe(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._totals()

    def collect(self) -> Iterator[Metric]:
        stats = self._store.stats()
        for gauge, value in zip(self._gauges(), (stats.num_pages, stats.num_bytes), strict=True):
            gauge.add_metric(self._labels, value)
            yield gauge
        totals = (stats.found, stats.missing, stats.corrupt, stats.evicted)
        for total, value in zip(self._totals(), totals, strict=True):
            total.add_metric(self._labels, value)
            yield total

    def _gauges(self) -> tuple[GaugeMetricFamily, ...]:
        names = ("worker", "store")
        return (
            GaugeMetricFamily("radixgate_storage_pages", "Pages in the store, of all workers", labels=names),
            GaugeMetricFamily("radixgate_storage_bytes", "Bytes in the store, of all workers", labels=names),
        )

    def _totals(self) -> tuple[CounterMetricFamily, ...]:
        names = ("worker", "store")
        return (
            CounterMetricFamily("radixgate_storage_found_pages", "Pages that were read", labels=names),
            CounterMetricFamily(
                "radixgate_storage_missing_pages", "Pages looked up, and gone when they were read", labels=names
            ),
            CounterMetricFamily(
                "radixgate_storage_corrupt_pages", "Pages found torn or altered, and removed", labels=names
            ),
            CounterMetricFamily("radixgate_storage_evicted_pages", "Pages dropped for the bound", labels=names),
        )
