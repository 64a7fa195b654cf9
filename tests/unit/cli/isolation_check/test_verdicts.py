import pytest

from cli.isolation_check.verdicts import Evidence, Finding, Outcome, exit_code


def finding(*seen: tuple[bool, bool], trouble: str = "") -> Finding:
    """What follows from observations, each (is it a control, does it hold)."""
    evidence = Evidence()
    for number, (is_control, holds) in enumerate(seen):
        (evidence.control if is_control else evidence.claim)(f"number {number}", "", holds)
    return evidence.finding("check", "gRPC", trouble)


CONTROL, CLAIM = True, False


@pytest.mark.parametrize(
    ("seen", "trouble", "outcome"),
    [
        ([(CONTROL, True), (CLAIM, True)], "", Outcome.PASSED),
        ([(CONTROL, True), (CLAIM, False)], "", Outcome.BROKEN),
        ([(CONTROL, False), (CLAIM, True)], "", Outcome.INCONCLUSIVE),
        ([(CONTROL, False), (CLAIM, False)], "", Outcome.BROKEN),
        ([(CONTROL, True)], "", Outcome.INCONCLUSIVE),
        ([], "", Outcome.INCONCLUSIVE),
        ([(CONTROL, True), (CLAIM, True)], "UNAVAILABLE: gone", Outcome.INCONCLUSIVE),
        ([(CONTROL, True), (CLAIM, False)], "UNAVAILABLE: gone", Outcome.BROKEN),
    ],
)
def test_a_leak_is_a_leak_and_nothing_is_proven_without_controls(
    seen: list[tuple[bool, bool]], trouble: str, outcome: Outcome
) -> None:
    assert finding(*seen, trouble=trouble).outcome is outcome


def test_the_reason_names_what_does_not_hold() -> None:
    assert finding((CONTROL, True), (CLAIM, False), (CLAIM, False)).reason == "does not hold: number 1; number 2"
    assert finding((CONTROL, False), (CLAIM, True)).reason == "the control failed: number 0"


def test_of_what_is_seen_several_times_the_worst_is_kept() -> None:
    evidence = Evidence()
    for seen, holds in (("0 of 9", True), ("8 of 9", False), ("0 of 9", True)):
        evidence.claim("nothing is found", seen, holds)
    (kept,) = evidence.finding("check", "gRPC").observations
    assert (kept.seen, kept.holds, kept.times) == ("8 of 9", False, 3)


@pytest.mark.parametrize(
    ("outcomes", "strict", "status"),
    [
        ([Outcome.PASSED, Outcome.PASSED], True, 0),
        ([Outcome.PASSED, Outcome.BROKEN, Outcome.INCONCLUSIVE], False, 1),
        ([Outcome.PASSED, Outcome.INCONCLUSIVE], False, 2),
        ([Outcome.PASSED, Outcome.SKIPPED], False, 0),
        ([Outcome.PASSED, Outcome.SKIPPED], True, 2),
        ([Outcome.SKIPPED], False, 2),
        ([], False, 2),
    ],
)
def test_the_exit_status_says_whether_isolation_holds(outcomes: list[Outcome], strict: bool, status: int) -> None:
    findings = [Finding("check", "gRPC", outcome, "") for outcome in outcomes]
    assert exit_code(findings, strict=strict) == status
