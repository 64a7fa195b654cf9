"""Who gets recorded: a share of everything, and what tenants ask for within their budgets."""

import random

from tracing.sampling import STRANGERS_PER_MINUTE, Budget, Sampler


def test_the_share_is_drawn_whatever_callers_ask_for() -> None:
    sampler = Sampler(0.25, asked_per_minute=0, draw=random.Random(1).random)
    taken = sum(sampler.takes("a", asked=number % 2 == 0, now=0.0) for number in range(4_000))
    assert 900 < taken < 1_100


def test_a_flag_that_says_no_hides_nothing() -> None:
    assert Sampler(1.0, asked_per_minute=0).takes("a", asked=False, now=0.0)


def test_what_a_tenant_asks_for_is_bounded_and_costs_others_nothing() -> None:
    sampler = Sampler(0.0, asked_per_minute=10)
    assert sum(sampler.takes("a", asked=True, now=0.0) for _ in range(1_000)) == 10
    assert sampler.takes("b", asked=True, now=0.0)
    assert not sampler.takes("a", asked=False, now=600.0)
    assert sum(sampler.takes("a", asked=True, now=30.0) for _ in range(1_000)) == 5
    assert sum(sampler.takes("a", asked=True, now=3_600.0) for _ in range(1_000)) == 10


def test_strangers_share_one_budget_and_ask_in_vain() -> None:
    assert not Sampler(0.0, asked_per_minute=60).takes_stranger(0.0)
    sampler = Sampler(1.0, asked_per_minute=0)
    assert sum(sampler.takes_stranger(0.0) for _ in range(10_000)) == STRANGERS_PER_MINUTE


def test_a_budget_remembers_a_bounded_number_of_names() -> None:
    budget = Budget(1)
    for number in range(30_000):
        assert budget.take(str(number), 0.0)
    assert len(budget._left) <= 10_000
    assert not budget.take("29999", 0.0)
