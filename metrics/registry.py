"""What the metrics of a process share: a registry of its own, buckets, series that can be forgotten, descriptions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, disable_created_metrics
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from metrics.described import ALWAYS, Described, Kind, Process

# Seconds. From a step of a small model on a GPU to a long answer on a laptop.
QUEUE_WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
INTER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
END_TO_END_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
ADAPTER_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# From a few tokens over PCIe to a batch of pages on a slow disk.
COPY_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
STEP_TOKENS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class MetricFamilies:
    """Makes metrics in one registry, and describes each; the constant labels come first in each."""

    def __init__(self, process: Process, constant_labels: Sequence[str] = ()) -> None:
        # "_created" doubles the series, for a time that nobody reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=True)
        self._process: Process = process
        self._constant_labels = tuple(constant_labels)
        self._families: list[tuple[Counter | Gauge | Histogram, frozenset[str]]] = []
        self._described: list[Described] = []

    @property
    def described(self) -> tuple[Described, ...]:
        """Every family made so far, in that order."""
        return tuple(self._described)

    def counter(self, name: str, text: str, labels: Sequence[str] = (), *, when: str = ALWAYS) -> Counter:
        counter = Counter(name, text, self._names(labels), registry=self.registry)
        self._remember(counter, name, "counter", text, labels, (), when)
        return counter

    def gauge(self, name: str, text: str, labels: Sequence[str] = (), *, when: str = ALWAYS) -> Gauge:
        gauge = Gauge(name, text, self._names(labels), registry=self.registry)
        self._remember(gauge, name, "gauge", text, labels, (), when)
        return gauge

    def histogram(
        self, name: str, text: str, buckets: Iterable[float], labels: Sequence[str] = (), *, when: str = ALWAYS
    ) -> Histogram:
        bounds = tuple(buckets)
        histogram = Histogram(name, text, self._names(labels), registry=self.registry, buckets=bounds)
        self._remember(histogram, name, "histogram", text, labels, bounds, when)
        return histogram

    def collector(self, collector: Collector, labels: Sequence[str], *, when: str = ALWAYS) -> None:
        """Register what computes its samples when somebody looks. `labels` are those of all its families.

        Forgets nothing by itself: `forget` does not reach it.
        """
        self.registry.register(collector)
        for family in _families_of(collector):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            self._describe(name, cast(Kind, family.type), family.documentation, tuple(labels), (), when)

    def process_metrics(self) -> None:
        """Show the process itself: CPU time, memory, open files. Nothing where there is no /proc."""
        self.collector(ProcessCollector(registry=None), (), when="on Linux")

    def forget(self, labels: Mapping[str, str]) -> None:
        """Remove every series that carries these labels with these values."""
        for family, names in self._families:
            if names.issuperset(labels):
                family.remove_by_labels(dict(labels))

    def _names(self, labels: Sequence[str]) -> tuple[str, ...]:
        return (*self._constant_labels, *labels)

    def _remember(
        self,
        family: Counter | Gauge | Histogram,
        name: str,
        kind: Kind,
        text: str,
        labels: Sequence[str],
        buckets: tuple[float, ...],
        when: str,
    ) -> None:
        names = self._names(labels)
        self._families.append((family, frozenset(names)))
        self._describe(name, kind, text, names, buckets, when)

    def _describe(
        self, name: str, kind: Kind, text: str, labels: tuple[str, ...], buckets: tuple[float, ...], when: str
    ) -> None:
        self._described.append(Described(name, kind, labels, text, buckets, self._process, when))


def _families_of(collector: Collector) -> list[Metric]:
    """What a collector shows; it says so itself, or is asked for what it shows now."""
    describe = getattr(collector, "describe", None)
    return list(describe() if describe is not None else collector.collect())
