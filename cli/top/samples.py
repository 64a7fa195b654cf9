"""What an endpoint shows at one moment, as values: series by name and labels."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from prometheus_client.parser import text_string_to_metric_families

from cli.top.names import SERIES

Labels = tuple[tuple[str, str], ...]  # sorted by name
Family = Mapping[Labels, float]

_COUNTING = ("_total", "_sum", "_count", "_bucket")


class UnreadableError(ValueError):
    """What came is no exposition of metrics."""


def labels_of(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


@lru_cache(maxsize=65_536)
def label(labels: Labels, name: str) -> str:
    """Return the value of one label, "" for one that is not there."""
    return dict(labels).get(name, "")


@dataclass(frozen=True, slots=True)
class Samples:
    """The series of one moment, by the name of the sample."""

    families: Mapping[str, Family] = field(default_factory=dict)

    @classmethod
    def of(cls, triples: Iterable[tuple[str, Mapping[str, str], float]]) -> "Samples":
        """Keep what is looked at; several series that differ in nothing kept here count once, the last."""
        families: dict[str, dict[Labels, float]] = {}
        for name, labels, value in triples:
            if name in SERIES:
                families.setdefault(name, {})[labels_of(labels)] = value
        return cls(families)

    def value(self, name: str, **where: str) -> float | None:
        """Return the sum over the series that match, None where there is none."""
        found = [value for labels, value in self.matching(name, where)]
        return sum(found) if found else None

    def values(self, name: str, by: str) -> dict[str, float]:
        """Return the sums by one label."""
        sums: dict[str, float] = {}
        for labels, value in self.families.get(name, {}).items():
            key = label(labels, by)
            sums[key] = sums.get(key, 0.0) + value
        return sums

    def first(self, name: str) -> Labels:
        """Return the labels of any series of this name, () where there is none: of an info metric, what it says."""
        return next(iter(self.families.get(name, {})), ())

    def matching(self, name: str, where: Mapping[str, str]) -> Iterator[tuple[Labels, float]]:
        for labels, value in self.families.get(name, {}).items():
            if all(label(labels, key) == wanted for key, wanted in where.items()):
                yield labels, value

    def counters(self) -> Iterator[tuple[str, Family]]:
        """The families that only grow, until their process ends."""
        for name, family in self.families.items():
            if name.endswith(_COUNTING):
                yield name, family


def parse(text: str) -> Samples:
    """Return what an exposition in Prometheus' text format says. Raises UnreadableError."""
    try:
        return Samples.of(
            (sample.name, sample.labels, float(sample.value))
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        )
    except (ValueError, IndexError, KeyError) as error:
        raise UnreadableError(f"no metrics in Prometheus' text format: {error}") from error
