"""`radixgate_cache_hit_rate`: the share of prompt tokens found in the cache, over a sliding window."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from metrics.window import SlidingRatio


class HitRateCollector(Collector):
    """One ratio per label values, computed when somebody looks.

    Label values without traffic in the window have no sample: a gap says "no traffic" in a graph, is skipped by
    aggregations, and ends an alert's condition, where 0 would claim that everything missed. Counted from one thread,
    collected from others.
    """

    def __init__(self, label_names: Sequence[str], window_s: float, clock: Callable[[], float]) -> None:
        self._label_names = tuple(label_names)
        self._window_s = window_s
        self._clock = clock
        self._lock = threading.Lock()
        self._ratios: dict[tuple[str, ...], SlidingRatio] = {}

    def admitted(self, labels: tuple[str, ...], cached_tokens: int, prompt_tokens: int) -> None:
        """Count one request, once, when it is admitted."""
        with self._lock:
            ratio = self._ratios.get(labels)
            if ratio is None:
                ratio = self._ratios[labels] = SlidingRatio(self._window_s)
            ratio.add(cached_tokens, prompt_tokens, now=self._clock())

    def forget(self, labels: Mapping[str, str]) -> None:
        """Drop every ratio that carries these labels with these values."""
        wanted = [(self._label_names.index(name), value) for name, value in labels.items()]
        with self._lock:
            for values in [v for v in self._ratios if all(v[position] == value for position, value in wanted)]:
                del self._ratios[values]

    def describe(self) -> Iterator[Metric]:
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        with self._lock:
            now = self._clock()
            for labels in list(self._ratios):
                value = self._ratios[labels].value(now=now)
                if value is None:
                    del self._ratios[labels]
                else:
                    family.add_metric(labels, value)
        yield family

    def _family(self) -> GaugeMetricFamily:
        text = (
            f"Share of prompt tokens found in the cache, over the requests admitted in the last {self._window_s:g} s; "
            "no sample without traffic"
        )
        return GaugeMetricFamily("radixgate_cache_hit_rate", text, labels=self._label_names)
