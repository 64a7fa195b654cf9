"""What rule files say of metrics is true: every name, every label, every bucket, every rate."""

import re
import subprocess

import promql_parser
import pytest
import yaml

from metrics.bounds import Bounds
from metrics.catalogue import by_series, catalogue
from tests.deploy.monitors import HOW_TO_GET
from tests.deploy.rules import (
    Rule,
    alerts,
    faults,
    known_series,
    labels_of,
    recorded_labels,
    rule_files,
    scaled,
    selectors,
    shipped,
)
from tests.tools import require_tool

_RECORDED = re.compile(r"(radixgate|namespace(_[a-z]+)*):[a-z0-9_]+:[a-z0-9_]+")
_LABEL_IN_TEXT = re.compile(r"\$labels\.(\w+)")


def names(rules: list[Rule]) -> list[str]:
    return [rule.name for rule in rules]


def test_promtool_accepts_all_rule_files() -> None:
    promtool = require_tool("promtool", HOW_TO_GET)
    done = subprocess.run(
        [promtool, "check", "rules", "--lint-fatal", *map(str, rule_files())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", shipped(), ids=lambda rule: rule.name)
def test_every_metric_label_and_bucket_of_an_expression_exists(rule: Rule) -> None:
    assert faults(rule.expr, known_series()) == []


@pytest.mark.parametrize(
    "name",
    sorted({str(node.name) for rule in shipped() for node in selectors(rule.expr)} & set(by_series())),
)
def test_a_metric_that_is_renamed_is_missed_by_some_rule(name: str) -> None:
    known = known_series()
    del known[name]
    assert any(f"{name}: no such metric" in faults(rule.expr, known) for rule in shipped())


@pytest.mark.parametrize(
    ("expr", "fault"),
    [
        ("rate(radixgate_prompt_tokenz_total[5m])", "radixgate_prompt_tokenz_total: no such metric"),
        ('radixgate_slots{level="host"}', "radixgate_slots: no label level"),
        ("sum by (tenant) (radixgate_slots)", "by (tenant): nothing below has that label"),
        ("rate(radixgate_running_sequences[5m])", "rate(radixgate_running_sequences): no counter"),
        ("delta(radixgate_pauses_total[5m])", "delta(radixgate_pauses_total): a counter"),
        ('radixgate_queue_wait_seconds_bucket{le="7"}', "radixgate_queue_wait_seconds_bucket: no bucket 7"),
        ("up / on (tier) radixgate_running_sequences", "on (tier): nothing below has that label"),
    ],
)
def test_what_does_not_exist_is_found(expr: str, fault: str) -> None:
    assert faults(expr, known_series()) == [fault]


def test_recorded_names_say_level_metric_and_operations_and_have_the_labels_of_their_level() -> None:
    known = known_series()
    recorded = [rule for rule in shipped() if not rule.alerts]
    assert len(set(names(recorded))) == len(recorded)
    for rule in recorded:
        assert _RECORDED.fullmatch(rule.name), rule.name
        assert labels_of(promql_parser.parse(rule.expr), known) == recorded_labels(rule.name), rule.name


def test_hit_rates_are_ratios_of_sums_of_rates_without_traffic_left_out() -> None:
    ratios = [rule for rule in shipped() if "cache_hit_ratio" in rule.name]
    assert {rule.name.partition(":")[0] for rule in ratios} == {
        "namespace", "namespace_tier", "namespace_tenant", "namespace_tenant_adapter", "namespace_worker",
    }  # fmt: skip
    for rule in ratios:
        assert "avg" not in rule.expr
        assert "> 0)" in rule.expr
        assert "radixgate_cache_hit_rate" not in rule.expr


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_an_alert_says_how_grave_it_is_what_it_found_and_only_labels_that_it_has(alert: Rule) -> None:
    assert alert.name.startswith("Radixgate")
    assert alert.settings["labels"] in ({"severity": "critical"}, {"severity": "warning"})
    assert set(alert.annotations) == {"summary", "description", "runbook_url"}
    assert "$value" in alert.annotations["description"] or "$labels" in alert.annotations["description"]
    there = labels_of(promql_parser.parse(alert.expr), known_series())
    used = {name for text in alert.annotations.values() for name in _LABEL_IN_TEXT.findall(text)}
    assert used <= there, f"{sorted(used - there)} of {sorted(there)}"


def test_alerts_have_names_of_their_own() -> None:
    assert len(set(names(alerts()))) == len(alerts())


@pytest.mark.parametrize("process", ["worker", "gateway"])
def test_what_a_process_can_show_at_most_is_below_the_alert_about_it(process: str) -> None:
    limit = next(rule.expr for rule in shipped() if rule.name == "radixgate:series_limit:count")
    most = Bounds().most_samples(family for family in catalogue() if family.process == process)
    assert most < 0.8 * float(limit.removeprefix("vector(").removesuffix(")"))


def test_scaled_rules_wait_less_and_are_else_the_same() -> None:
    document = yaml.safe_load("""
        groups: [{name: g, rules: [
            {record: a:b:rate5m, expr: 'sum(rate(x_total[5m])) + y offset 1h > 300'},
            {alert: A, expr: 'max_over_time(a:b:rate5m[1d]) > 5', for: 2m, labels: {severity: warning}}]}]
    """)
    assert scaled(document, 60) == yaml.safe_load("""
        groups: [{name: g, rules: [
            {record: a:b:rate5m, expr: 'sum(rate(x_total[5s])) + y offset 60s > 300'},
            {alert: A, expr: 'max_over_time(a:b:rate5m[1440s]) > 5', for: 2s, labels: {severity: warning}}]}]
    """)
    with pytest.raises(AssertionError, match="less than a second"):
        scaled(document, 600)
