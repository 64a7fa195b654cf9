"""Our rule files as tests read them: what each expression asks for, and whether there is such a thing."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import yaml
from promql_parser import AggregateExpr, BinaryExpr, Call, MatrixSelector, VectorSelector

from metrics.catalogue import by_series
from tests.tools import REPOSITORY

RULES = REPOSITORY / "deploy" / "helm" / "radixgate" / "files" / "rules"
# Labels that Prometheus gives to every target, some of them in Kubernetes only; and what it says of targets itself.
TARGET_LABELS = frozenset({"job", "instance", "namespace", "pod"})
OF_PROMETHEUS = ("up", "scrape_samples_scraped")
_OF_COUNTERS = frozenset({"rate", "increase"})
_OF_GAUGES = frozenset({"delta", "deriv"})

Labels = frozenset[str]
Known = Mapping[str, "Series"]


@dataclass(frozen=True)
class Series:
    """What is known of one name of samples."""

    labels: Labels
    grows: bool  # whether a rate of it makes sense
    bounds: frozenset[str] = frozenset()  # of buckets


@dataclass(frozen=True)
class Rule:
    group: str
    name: str
    alerts: bool
    expr: str
    settings: Mapping[str, Any]

    @property
    def annotations(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.settings.get("annotations", {})
        return found


def rule_files() -> list[Path]:
    return sorted(RULES.glob("*.yaml"))


@cache
def shipped() -> tuple[Rule, ...]:
    """All rules, of all files."""
    return tuple(rule for file in rule_files() for rule in rules_of(yaml.safe_load(file.read_text())))


def rules_of(document: Mapping[str, Any]) -> Iterator[Rule]:
    for group in document["groups"]:
        for rule in group["rules"]:
            name = rule.get("alert") or rule["record"]
            yield Rule(group["name"], name, "alert" in rule, rule["expr"], rule)


def alerts() -> list[Rule]:
    return [rule for rule in shipped() if rule.alerts]


def recorded_labels(name: str) -> Labels:
    """Return the labels that the level of a recorded name promises: `namespace_tenant:metric:operations`."""
    level = name.partition(":")[0]
    return frozenset() if level == "radixgate" else frozenset(level.split("_"))


def known_series() -> dict[str, Series]:
    """Return everything that an expression may name: what our processes show, what Prometheus adds, what we record."""
    known = {name: Series(TARGET_LABELS, grows=False) for name in OF_PROMETHEUS}
    for name, family in by_series().items():
        bounds = (*(f"{bound:g}" for bound in family.buckets), "+Inf") if name.endswith("_bucket") else ()
        labels = TARGET_LABELS.union(family.labels_of(name))
        known[name] = Series(labels, grows=family.kind != "gauge", bounds=frozenset(bounds))
    for rule in shipped():
        if not rule.alerts:
            known[rule.name] = Series(recorded_labels(rule.name), grows=False)
    return known


def selectors(expr: str) -> list[VectorSelector]:
    found: list[VectorSelector] = []
    _visit(promql_parser.parse(expr), lambda node: found.append(node) if isinstance(node, VectorSelector) else None)
    return found


def faults(expr: str, known: Known) -> list[str]:
    """Return what is wrong with the names in an expression: metrics, labels, bounds of buckets, rates of gauges."""
    found: list[str] = []

    def look(node: Any) -> None:
        if isinstance(node, VectorSelector):
            found.extend(_selector_faults(node, known))
        elif isinstance(node, AggregateExpr) and node.modifier is not None:
            found.extend(_unknown(node.modifier.labels, labels_of(node.expr, known), "by"))
        elif isinstance(node, BinaryExpr) and node.modifier is not None and node.modifier.matching is not None:
            either = labels_of(node.lhs, known) | labels_of(node.rhs, known)
            found.extend(_unknown(node.modifier.matching.labels, either | TARGET_LABELS, "on"))
        elif isinstance(node, Call):
            found.extend(_call_faults(node, known))

    _visit(promql_parser.parse(expr), look)
    return found


def labels_of(node: Any, known: Known) -> Labels:
    """Return the labels that the samples of an expression can have."""
    if isinstance(node, VectorSelector):
        return known[node.name].labels if node.name is not None and node.name in known else frozenset()
    if isinstance(node, MatrixSelector):
        return labels_of(node.vector_selector, known)
    if isinstance(node, AggregateExpr):
        return frozenset(node.modifier.labels) if node.modifier is not None else frozenset()
    if isinstance(node, Call):
        labels = frozenset[str]().union(*(labels_of(each, known) for each in node.args))
        return labels - {"le"} if node.func.name == "histogram_quantile" else labels
    if isinstance(node, BinaryExpr):
        left, right = labels_of(node.lhs, known), labels_of(node.rhs, known)
        return left or right
    inner = getattr(node, "expr", None)
    return labels_of(inner, known) if inner is not None else frozenset()


def _selector_faults(node: VectorSelector, known: Known) -> Iterator[str]:
    series = known.get(node.name or "")
    if series is None:
        yield f"{node.name}: no such metric"
        return
    for matcher in node.matchers.matchers:
        if matcher.name not in series.labels:
            yield f"{node.name}: no label {matcher.name}"
        if matcher.name == "le" and matcher.value not in series.bounds:
            yield f"{node.name}: no bucket {matcher.value}"


def _call_faults(node: Call, known: Known) -> Iterator[str]:
    wanted = True if node.func.name in _OF_COUNTERS else False if node.func.name in _OF_GAUGES else None
    for argument in node.args if wanted is not None else []:
        name = argument.vector_selector.name
        if name in known and known[name].grows is not wanted:
            yield f"{node.func.name}({name}): {'no counter' if wanted else 'a counter'}"


def _unknown(names: list[str], there: Labels, where: str) -> Iterator[str]:
    yield from (f"{where} ({name}): nothing below has that label" for name in names if name not in there)


def _visit(expr: Any, look: Callable[[Any], object]) -> None:
    def visit(node: Any) -> bool:
        look(node)
        return True

    promql_parser.walk(expr, visit)


# --------------------------------------------------------------------------------------------- rules for the impatient

_RANGE = re.compile(r"\[(\w+)\]")
_OFFSET = re.compile(r"\boffset (\w+)")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def scaled(document: Mapping[str, Any], factor: int) -> dict[str, Any]:
    """Return rules whose windows, offsets and waiting times are `factor` times shorter, and which are else the same."""

    def shorter(duration: str) -> str:
        seconds, rest = divmod(int(duration[:-1]) * _UNITS_S[duration[-1]], factor)
        assert seconds >= 1, f"{duration} / {factor} is less than a second"
        assert not rest, f"{duration} / {factor} is no whole number of seconds"
        return f"{seconds}s"

    def rule(given: Mapping[str, Any]) -> dict[str, Any]:
        expr = _RANGE.sub(lambda found: f"[{shorter(found[1])}]", given["expr"])
        expr = _OFFSET.sub(lambda found: f"offset {shorter(found[1])}", expr)
        return {**given, "expr": expr, **({"for": shorter(given["for"])} if "for" in given else {})}

    return {
        **document,
        "groups": [{**group, "rules": [rule(each) for each in group["rules"]]} for group in document["groups"]],
    }
