"""How much of a step each tenant's prompts get."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.worker.engine.waiting_sequences import waiting
from worker.engine.prompts import Allowances, PromptShares, divide
from worker.engine.sequence import Sequence
from worker.engine.waiting import Front

CHUNK, CONTESTED, FLOOD = 256, 128, 2000


def share(
    num_tokens: int, running: list[Sequence], waits: dict[str, Front] | None = None, shares: PromptShares | None = None
) -> Allowances:
    shares = shares or PromptShares(CHUNK, CONTESTED, FLOOD)
    return shares.divide(num_tokens, running, waits or {}, now=0.0)


def prefilling(tenant: str, num_tokens: int, priority: int = 0, weight: float = 1.0) -> Sequence:
    return waiting(0, [1] * num_tokens, tenant=tenant, priority=priority, weight=weight)


def lots(tenant: str, num_sequences: int = 20, weight: float = 1.0) -> list[Sequence]:
    return [prefilling(tenant, 1000, weight=weight) for _ in range(num_sequences)]


@given(
    num_tokens=st.integers(0, 1000),
    demands=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 600), min_size=1),
    weights=st.fixed_dictionaries({tenant: st.sampled_from([1e-30, 0.5, 1.0, 3.0, 1e30]) for tenant in "abcd"}),
)
def test_nobody_gets_more_than_it_needs_and_who_gets_less_gets_no_less_for_its_weight_than_others(
    num_tokens: int, demands: dict[str, int], weights: dict[str, float]
) -> None:
    given_tokens = divide(num_tokens, demands, weights)
    assert sum(given_tokens.values()) == min(num_tokens, sum(demands.values()))
    for tenant, tokens in given_tokens.items():
        assert 0 <= tokens <= demands[tenant]
        if tokens < demands[tenant]:
            for other, others in given_tokens.items():
                # But for the rounding up to whole tokens: its own, and that of all who come before.
                assert (others - 1) / weights[other] <= (tokens + len(demands)) / weights[tenant]


def test_a_tenant_alone_gets_the_whole_step() -> None:
    allowed = share(480, lots("b"))
    assert allowed.tokens == {(0, "b"): 480}
    assert allowed.withheld == 0


def test_equals_get_the_same_and_weights_count() -> None:
    assert share(480, [*lots("a"), *lots("b")]).tokens == {(0, "a"): 240, (0, "b"): 240}
    assert share(480, [*lots("a", weight=3.0), *lots("b")]).tokens == {(0, "a"): 360, (0, "b"): 120}


def test_who_waits_has_its_part() -> None:
    allowed = share(480, lots("a", 10), {"b": Front(0, 1.0, 9000)})
    assert allowed.tokens == {(0, "a"): 240, (0, "b"): 240}


def test_high_priorities_come_first() -> None:
    allowed = share(480, [prefilling("a", 400, priority=1), *lots("b", 10)])
    assert allowed.tokens == {(1, "a"): 256, (0, "b"): 224}


def test_who_has_little_comes_before_a_flood_whose_step_is_shorter_meanwhile() -> None:
    allowed = share(480, [*lots("b"), prefilling("a", 100)])
    assert allowed.tokens == {(0, "a"): 100, (0, "b"): CONTESTED - 100}
    assert allowed.withheld == 480 - CONTESTED


def test_who_has_little_is_not_held_back_itself() -> None:
    allowed = share(480, [*lots("b"), prefilling("a", 400)])
    assert allowed.tokens == {(0, "a"): CHUNK, (0, "b"): 0}


def test_beside_tenants_with_a_bit_more_steps_are_as_long_as_ever() -> None:
    allowed = share(480, [prefilling("b", 900), prefilling("a", 100)])
    assert allowed.withheld == 0
    assert sum(allowed.tokens.values()) == 100 + CHUNK


@pytest.mark.parametrize(("seen_at", "withheld"), [(-5.0, 480 - CONTESTED), (-15.0, 0)])
def test_who_sent_something_of_late_is_reckoned_with(seen_at: float, withheld: int) -> None:
    shares = PromptShares(CHUNK, CONTESTED, FLOOD)
    shares.seen("a", seen_at)
    shares.seen("b", seen_at)
    assert share(480, lots("b"), shares=shares).withheld == withheld
