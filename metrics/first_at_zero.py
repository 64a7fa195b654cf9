"""Shows a Prometheus server each new series of a counter or histogram at 0 before it shows what was counted.

A rate is made of differences, and what a series says when it is first seen is in none. Series begin with a tenant's
first request, which mostly finds nothing in the cache: without this, rates of hits would be too high after every start.
With it all of that is in the difference between the first two scrapes.

Whoever else looks sees every series as it is. Knows Prometheus' data model, and nothing of HTTP.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from copy import copy
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.samples import Sample

MAX_SCRAPERS: Final = 8
_GROWING: Final = frozenset({"counter", "histogram"})


class Collected(Protocol):
    """What the exposition writes."""

    def collect(self) -> Iterable[Metric]: ...

    def restricted_registry(self, names: Iterable[str]) -> object: ...


class FirstAtZero:
    """Remembers which series each of the last scrapers has seen. One scrape at a time.

    The first scraper of a process finds everything at 0 once. One that comes later, or that was forgotten, finds what
    there is by then as it is: for it that would be a reset that never was.
    """

    def __init__(self, registry: CollectorRegistry, max_scrapers: int = MAX_SCRAPERS) -> None:
        self._registry = registry
        self._max_scrapers = max_scrapers
        self._seen: OrderedDict[str, set[int]] = OrderedDict()  # by scraper: hashes of series; the last ones last

    def of(self, scraper: str) -> Collected:
        """Return what this scraper is to see now."""
        return _View(self, self._registry, scraper)

    def collect(self, scraper: str) -> Iterator[Metric]:
        before = self._seen.pop(scraper, None)
        if before is None and not self._seen:
            before = set()
        now: set[int] = set()
        for metric in self._registry.collect():
            yield metric if metric.type not in _GROWING else _shown(metric, before, now)
        self._seen[scraper] = now
        while len(self._seen) > self._max_scrapers:
            self._seen.popitem(last=False)


class _View:
    def __init__(self, whole: FirstAtZero, registry: CollectorRegistry, scraper: str) -> None:
        self._whole = whole
        self._scraper = scraper
        # Some of the names, as a person asks: nothing to take differences of.
        self.restricted_registry = registry.restricted_registry

    def collect(self) -> Iterator[Metric]:
        return self._whole.collect(self._scraper)


def _shown(metric: Metric, before: set[int] | None, now: set[int]) -> Metric:
    """Return the metric with what was not seen before at 0, and note all of it in `now`. None: all of it was seen."""
    samples: list[Sample] = []
    for sample in metric.samples:
        series = hash((sample.name, *sample.labels.values()))
        now.add(series)
        samples.append(sample if before is None or series in before else sample._replace(value=0.0))
    shown = copy(metric)
    shown.samples = samples
    return shown
