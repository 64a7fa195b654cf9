"""Runs checks one after the other; whatever one of them meets, the others are made."""

from collections.abc import Sequence

import grpc

from cli.isolation_check.checks.base import Check
from cli.isolation_check.probes import Refused, Unreachable
from cli.isolation_check.verdicts import Evidence, Finding, Outcome, Skipped
from cli.progress import Reporter


def run_checks(checks: Sequence[Check], reporter: Reporter) -> list[Finding]:
    findings = []
    for check in checks:
        stage = stage_of(check.name, check.over)
        reporter.report(stage, 0.0)
        findings.append(_run(check))
        reporter.report(stage, 1.0)
    return findings


def stage_of(name: str, over: str) -> str:
    return f"{name} over {over}"


def _run(check: Check) -> Finding:
    evidence = Evidence()
    try:
        check.run(evidence)
    except Skipped as skipped:
        return Finding(check.name, check.over, Outcome.SKIPPED, str(skipped))
    except (Refused, Unreachable) as error:
        return evidence.finding(check.name, check.over, trouble=str(error))
    except grpc.RpcError as error:
        return evidence.finding(check.name, check.over, trouble=f"{error.code().name}: {error.details()}")
    return evidence.finding(check.name, check.over)
