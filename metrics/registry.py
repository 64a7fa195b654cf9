"""What the metrics of a process share: a registry of its own, buckets, and series that can be forgotten."""

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

# Seconds. From a step of a small model on a GPU to a long answer on a laptop.
QUEUE_WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
INTER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
END_TO_END_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
ADAPTER_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
STEP_TOKENS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class MetricFamilies:
    """Makes metrics in one registry; the constant labels come first in each."""

    def __init__(self, constant_labels: Sequence[str] = ()) -> None:
        # "_created" doubles the series, for a time that nobody reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=True)
        self._constant_labels = tuple(constant_labels)
        self._families: list[tuple[Counter | Gauge | Histogram, frozenset[str]]] = []

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        counter = Counter(name, text, self._names(labels), registry=self.registry)
        self._remember(counter, labels)
        return counter

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        gauge = Gauge(name, text, self._names(labels), registry=self.registry)
        self._remember(gauge, labels)
        return gauge

    def histogram(self, name: str, text: str, buckets: Iterable[float], labels: Sequence[str] = ()) -> Histogram:
        histogram = Histogram(name, text, self._names(labels), registry=self.registry, buckets=tuple(buckets))
        self._remember(histogram, labels)
        return histogram

    def forget(self, labels: Mapping[str, str]) -> None:
        """Remove every series that carries these labels with these values."""
        for family, names in self._families:
            if names.issuperset(labels):
                family.remove_by_labels(dict(labels))

    def _names(self, labels: Sequence[str]) -> tuple[str, ...]:
        return (*self._constant_labels, *labels)

    def _remember(self, family: Counter | Gauge | Histogram, labels: Sequence[str]) -> None:
        self._families.append((family, frozenset(self._names(labels))))
