"""What is known of a family of metrics before it shows anything: name, labels, what its numbers mean."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Process = Literal["worker", "gateway"]

ALWAYS = "always"

_UNITS = ("seconds", "bytes", "tokens", "pages", "slots", "sequences", "requests", "streams")


@dataclass(frozen=True, slots=True)
class Described:
    """One family, as a process shows it."""

    name: str  # as in queries; a counter's ends in "_total", a histogram's has none of its endings
    kind: Kind
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...]  # upper bounds without +Inf, of a histogram
    process: Process
    when: str  # "always", or what has to be there: "with a host tier"

    @property
    def series(self) -> tuple[str, ...]:
        """The names that its samples have, which queries use."""
        if self.kind != "histogram":
            return (self.name,)
        return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")

    @property
    def samples(self) -> int:
        """How many samples one combination of label values has."""
        return len(self.buckets) + len(("+Inf", "sum", "count")) if self.kind == "histogram" else 1

    @property
    def unit(self) -> str:
        """The unit of its numbers, or of what a histogram observes; "" for a plain number."""
        stem = self.name.removesuffix("_total")
        if stem.endswith("_timestamp_seconds"):
            return "seconds since 1970"
        if stem.endswith("bytes_per_token"):
            return "bytes per token"
        if stem.endswith("_rate"):
            return "ratio, 0 to 1"
        if stem.endswith("process_start_time_seconds"):
            return "seconds since 1970"
        return next((unit for unit in _UNITS if stem.endswith(f"_{unit}")), "")

    def labels_of(self, series: str) -> tuple[str, ...]:
        """The labels of one of its `series`; of buckets, `le` is one."""
        if series not in self.series:
            raise ValueError(f"{series} is no series of {self.name}")
        return (*self.labels, "le") if series.endswith("_bucket") and self.kind == "histogram" else self.labels
