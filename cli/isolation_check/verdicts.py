"""What a check has seen, and what follows from it. Values; knows no deployment."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    PASSED = "passed"
    BROKEN = "broken"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"


class Skipped(Exception):
    """A check cannot be made with what was given; the message says what it needs."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One thing that was looked at. A control must hold for the check to mean anything; a claim is what it is about."""

    what: str
    seen: str
    holds: bool
    is_control: bool
    times: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, over one API."""

    check: str
    over: str
    outcome: Outcome
    reason: str
    observations: tuple[Observation, ...] = ()


class Evidence:
    """Collects what a check sees. The same thing seen again is one observation: the worst of them."""

    def __init__(self) -> None:
        self._observations: dict[str, Observation] = {}

    def control(self, what: str, seen: str, holds: bool) -> None:
        self._add(Observation(what, seen, holds, is_control=True))

    def claim(self, what: str, seen: str, holds: bool) -> None:
        self._add(Observation(what, seen, holds, is_control=False))

    def finding(self, check: str, over: str, trouble: str = "") -> Finding:
        """Return what follows. `trouble` is what kept the check from being made to its end, if anything did.

        A claim that does not hold is a leak, whatever the controls say. Without one, controls decide whether the check
        would have seen it.
        """
        seen = tuple(self._observations.values())
        broken = [each.what for each in seen if not each.is_control and not each.holds]
        blind = [each.what for each in seen if each.is_control and not each.holds]
        if broken:
            return Finding(check, over, Outcome.BROKEN, f"does not hold: {'; '.join(broken)}", seen)
        if trouble:
            return Finding(check, over, Outcome.INCONCLUSIVE, trouble, seen)
        if blind:
            return Finding(check, over, Outcome.INCONCLUSIVE, f"the control failed: {'; '.join(blind)}", seen)
        if all(each.is_control for each in seen):
            return Finding(check, over, Outcome.INCONCLUSIVE, "nothing was looked at", seen)
        return Finding(check, over, Outcome.PASSED, "", seen)

    def _add(self, new: Observation) -> None:
        old = self._observations.get(new.what)
        if old is None:
            self._observations[new.what] = new
            return
        worst = new if old.holds else old
        self._observations[new.what] = Observation(worst.what, worst.seen, worst.holds, worst.is_control, old.times + 1)


def exit_code(findings: Sequence[Finding], *, strict: bool) -> int:
    """Return 1 where isolation is broken, 2 where that could not be told, else 0. Skipped checks count if `strict`."""
    outcomes = {finding.outcome for finding in findings}
    if Outcome.BROKEN in outcomes:
        return 1
    if Outcome.INCONCLUSIVE in outcomes or Outcome.PASSED not in outcomes:
        return 2
    return 2 if strict and Outcome.SKIPPED in outcomes else 0
