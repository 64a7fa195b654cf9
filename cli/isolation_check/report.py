"""Prints findings: a table on a terminal, tab-separated lines into a pipe, JSON for scripts."""

import dataclasses
import json
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.isolation_check.verdicts import Finding, Observation, Outcome

_STYLES = {Outcome.PASSED: "green", Outcome.BROKEN: "bold red", Outcome.INCONCLUSIVE: "yellow", Outcome.SKIPPED: "dim"}
_SUMMARIES = {
    0: ("isolation holds in everything that was checked", "bold green"),
    1: ("isolation is broken", "bold red"),
    2: ("isolation could not be told: see what is inconclusive or skipped", "bold yellow"),
}


def report(findings: Sequence[Finding], status: int, as_json: bool) -> None:
    if as_json:
        document = {"exit_code": status, "findings": [dataclasses.asdict(finding) for finding in findings]}
        click.echo(json.dumps(document, ensure_ascii=False))
    elif (console := Console()).is_terminal:
        console.print(_table(findings))
        text, style = _SUMMARIES[status]
        console.print(text, style=style)
    else:
        for finding in findings:
            for line in _lines(finding):
                click.echo("\t".join(line))


def _lines(finding: Finding) -> list[tuple[str, ...]]:
    """One line for the finding, and one for each observation."""
    head = (finding.outcome.value, finding.check, finding.over, "", finding.reason)
    return [head, *(_line(finding, each) for each in finding.observations)]


def _line(finding: Finding, seen: Observation) -> tuple[str, ...]:
    mark = f"{'control' if seen.is_control else 'claim'} {'holds' if seen.holds else 'fails'}"
    return (mark, finding.check, finding.over, seen.what, seen.seen)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table("check", "over", "result", "evidence", box=None, header_style="bold", padding=(0, 2, 1, 0))
    for finding in findings:
        evidence = Text()
        if finding.reason:
            evidence.append(finding.reason, style=_STYLES[finding.outcome])
        for seen in finding.observations:
            evidence.append("\n" if evidence else "")
            evidence.append(_mark(seen), style="green" if seen.holds else "red")
            times = f" ({seen.times} times)" if seen.times > 1 else ""
            evidence.append(f" {seen.what}: {seen.seen}{times}", style="dim" if seen.is_control else "")
        result = Text(finding.outcome.value, style=_STYLES[finding.outcome])
        table.add_row(finding.check, finding.over, result, evidence)
    return table


def _mark(seen: Observation) -> str:
    return "✓" if seen.holds else "✗"
