"""Checks whose faults no worker can bring about: claims of identity, names of others, and times."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from cli.isolation_check.checks.base import Check
from cli.isolation_check.checks.claims import ClaimCheck
from cli.isolation_check.checks.names import NameCheck
from cli.isolation_check.checks.timing import judge
from cli.isolation_check.probes import Claim, Pair, Question, Refused, Reply
from cli.isolation_check.prompts import Prompts
from cli.isolation_check.running import run_checks
from cli.isolation_check.verdicts import Evidence, Finding, Outcome
from tests.unit.cli.isolation_check.silence import SilentReporter


def not_found(name: str) -> Refused:
    return Refused("NOT_FOUND", f"adapter '{name}' does not exist", "ADAPTER_NOT_FOUND", {"resource": name})


def claimed(claim: Claim) -> Refused:
    return Refused("INVALID_ARGUMENT", f"{claim.name} must not be sent", "IDENTITY_CLAIMED")


CLAIMS = (Claim("metadata", "x-tenant-id", "b"), Claim("metadata", "cache-salt", "b"), Claim("body", "tenant", "b"))


@dataclass
class FakeProbe:
    """A tenant of a gateway that is right about everything but what a test exchanges. Fits Probe."""

    own: frozenset[str] = frozenset()
    refuse_claim: Callable[[Claim], Refused | None] = claimed
    refuse_adapter: Callable[[str], Refused | None] = not_found
    over: str = "gRPC"
    refusals_of_claims: frozenset[str] = frozenset({"INVALID_ARGUMENT"})
    not_found: str = "NOT_FOUND"
    claims: Sequence[Claim] = CLAIMS

    def ask(self, question: Question, claim: Claim | None = None) -> Reply:
        refused = self.refuse_claim(claim) if claim in self.claims and claim is not None else None
        if question.adapter and question.adapter not in self.own:
            refused = self.refuse_adapter(question.adapter)
        if refused is not None:
            raise refused
        return Reply(len(question.token_ids), 0, 0, 0, 0.01)

    def adapters(self) -> frozenset[str]:
        return self.own


@pytest.fixture
def prompts() -> Prompts:
    return Prompts(range(500), 16, random.Random(1))


def run(check: Check) -> Finding:
    (finding,) = run_checks([check], SilentReporter())
    return finding


# -------------------------------------------------------------------------------------------------------------- claims


def test_claims_that_are_all_refused_pass(prompts: Prompts) -> None:
    finding = run(ClaimCheck(FakeProbe(), prompts))
    assert finding.outcome is Outcome.PASSED
    assert [each.seen for each in finding.observations if not each.is_control] == ["2 of 2 refused", "1 of 1 refused"]


@pytest.mark.parametrize("name", ["x-tenant-id", "cache-salt", "tenant"])
@pytest.mark.parametrize("answer", [None, Refused("PERMISSION_DENIED", "not you"), Refused("NOT_FOUND", "no tenant b")])
def test_a_claim_that_is_looked_at_at_all_is_found(prompts: Prompts, name: str, answer: Refused | None) -> None:
    probe = FakeProbe(refuse_claim=lambda claim: answer if claim.name == name else claimed(claim))
    finding = run(ClaimCheck(probe, prompts))
    assert finding.outcome is Outcome.BROKEN
    assert any(f"not refused: {name}" in each.seen for each in finding.observations)


def test_a_gateway_that_refuses_everything_proves_nothing(prompts: Prompts) -> None:
    class Closed(FakeProbe):
        def ask(self, question: Question, claim: Claim | None = None) -> Reply:
            raise Refused("INVALID_ARGUMENT", "no")

    finding = run(ClaimCheck(Closed(), prompts))
    assert (finding.outcome, finding.reason) == (Outcome.INCONCLUSIVE, "INVALID_ARGUMENT: no")


# --------------------------------------------------------------------------------------------------------------- names


def test_an_adapter_of_another_tenant_looks_like_none(prompts: Prompts) -> None:
    pair = Pair(FakeProbe(own=frozenset({"poet"})), FakeProbe())
    assert run(NameCheck(pair, "", prompts)).outcome is Outcome.PASSED
    assert run(NameCheck(pair.swapped(), "poet", prompts)).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    "told",
    [
        Refused("PERMISSION_DENIED", "adapter 'poet' does not exist", "ADAPTER_NOT_FOUND", {"resource": "poet"}),
        Refused("NOT_FOUND", "adapter 'poet' is not yours", "ADAPTER_NOT_FOUND", {"resource": "poet"}),
        Refused("NOT_FOUND", "adapter 'poet' does not exist", "ADAPTER_OF_OTHERS", {"resource": "poet"}),
        Refused("NOT_FOUND", "adapter 'poet' does not exist", "ADAPTER_NOT_FOUND", {"resource": "poet", "owner": "a"}),
        None,
    ],
)
def test_any_difference_to_what_does_not_exist_is_found(prompts: Prompts, told: Refused | None) -> None:
    others = FakeProbe(refuse_adapter=lambda name: told if name == "poet" else not_found(name))
    finding = run(NameCheck(Pair(FakeProbe(own=frozenset({"poet"})), others), "", prompts))
    assert finding.outcome is Outcome.BROKEN


def test_without_an_adapter_of_one_tenant_alone_nothing_can_be_compared(prompts: Prompts) -> None:
    both = frozenset({"poet"})
    finding = run(NameCheck(Pair(FakeProbe(own=both), FakeProbe(own=both)), "", prompts))
    assert finding.outcome is Outcome.SKIPPED


# --------------------------------------------------------------------------------------------------------------- times


def judged(own_ms: float, others_ms: float, noise_ms: float, pairs: int = 40, seed: int = 3) -> Outcome:
    """What follows where own cached prompts save so much, and those of others so much, and times vary so much."""
    random_ = random.Random(seed)
    evidence = Evidence()
    own, others = ([(saved + random_.gauss(0, noise_ms)) / 1e3 for _ in range(pairs)] for saved in (own_ms, others_ms))
    judge(evidence, own, others)
    return evidence.finding("timing", "gRPC").outcome


@pytest.mark.parametrize("seed", range(20))
def test_times_that_do_not_tell_pass(seed: int) -> None:
    assert judged(20, 0, noise_ms=5, seed=seed) is Outcome.PASSED


@pytest.mark.parametrize("others_ms", [20, 12, -12])
def test_times_that_tell_are_a_leak_whichever_way(others_ms: float) -> None:
    assert judged(20, others_ms, noise_ms=5) is Outcome.BROKEN


def test_a_leak_much_smaller_than_the_real_saving_is_found_as_well() -> None:
    assert judged(20, 4, noise_ms=3) is Outcome.BROKEN


@pytest.mark.parametrize(("own_ms", "noise_ms"), [(0, 5), (1, 50), (-20, 5)])
def test_times_that_tell_nothing_of_ones_own_prove_nothing(own_ms: float, noise_ms: float) -> None:
    assert judged(own_ms, 0, noise_ms) is Outcome.INCONCLUSIVE
