"""Every alert has cases in which it fires and cases in which it stays silent, and a page that says what to do."""

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.monitors import HOW_TO_GET
from tests.deploy.rules import Rule, alerts, selectors, shipped
from tests.tools import REPOSITORY, require_tool

CASES = sorted((REPOSITORY / "deploy" / "prometheus" / "tests").glob("*.yaml"))
RUNBOOK = REPOSITORY / "docs" / "runbook.md"
BASE = "https://github.com/radixgate/radixgate/blob/main/docs/runbook.md"

_SERIES = re.compile(r"\w+")


@dataclass(frozen=True)
class Case:
    """One look at one alert."""

    alert: str
    fires: bool
    told: frozenset[str]  # the metrics that Prometheus has been told by then


def cases() -> Iterator[Case]:
    for file in CASES:
        for group in yaml.safe_load(file.read_text())["tests"]:
            told = frozenset(_SERIES.match(each["series"])[0] for each in group["input_series"])  # type: ignore[index]
            for look in group["alert_rule_test"]:
                yield Case(look["alertname"], bool(look["exp_alerts"]), told)


def metrics_below(expr: str) -> set[str]:
    """Return the metrics that an expression comes from, through what is recorded."""
    recorded = {rule.name: rule.expr for rule in shipped() if not rule.alerts}
    found: set[str] = set()
    for node in selectors(expr):
        name = str(node.name)
        found |= metrics_below(recorded[name]) if name in recorded else {name}
    return found


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_alerts_fire_when_they_should_and_else_stay_silent(file: Path) -> None:
    promtool = require_tool("promtool", HOW_TO_GET)
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_every_alert_has_a_case_that_fires_and_one_that_stays_silent_although_there_is_something(alert: Rule) -> None:
    looks: dict[bool, list[Case]] = defaultdict(list)
    for case in cases():
        if case.alert == alert.name and case.told & metrics_below(alert.expr):
            looks[case.fires].append(case)
    assert looks[True], "no case in which it fires"
    assert looks[False], "no case in which it stays silent"


def test_cases_are_of_alerts_that_there_are() -> None:
    assert {case.alert for case in cases()} == {alert.name for alert in alerts()}


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert.name)
def test_every_alert_leads_to_a_section_of_the_runbook_that_says_what_to_do(alert: Rule) -> None:
    assert alert.annotations["runbook_url"] == f"{BASE}#{alert.name.lower()}"
    section = sections()[alert.name]
    for part in ("**For users:**", "**See:**", "**Do:**", "**Ignore:**"):
        assert part in section, f"{alert.name}: {part} is missing"


def test_the_runbook_has_no_sections_of_alerts_that_are_gone() -> None:
    assert {name for name in sections() if name.startswith("Radixgate")} == {alert.name for alert in alerts()}


def sections() -> dict[str, str]:
    """Return the runbook's sections, by heading."""
    parts: list[Any] = re.split(r"^#{2,3} (.+)$", RUNBOOK.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
