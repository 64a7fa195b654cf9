"""What requests cost."""

from typing import Any

import pytest

from gateway.quota.accounts import Account
from gateway.quota.costs import TokenCosts


def account(**values: Any) -> Account:
    return Account("model", "", admitted=True, **values)


@pytest.mark.parametrize(
    ("cached_cost", "cost"),
    [(1.0, 150), (0.0, 90), (0.1, 96), (0.01, 91), (0.5, 120)],
)
def test_cached_tokens_cost_what_is_configured_rounded_up(cached_cost: float, cost: int) -> None:
    used = account(prompt_tokens=100, cached_device_tokens=30, cached_host_tokens=20, cached_storage_tokens=10)
    used.completion_tokens = 50
    assert TokenCosts(cached=cached_cost).of_use(used) == cost


def test_decimal_costs_are_what_they_read() -> None:
    # In binary a tenth of 30 tokens is a little more than 3, which would round up to 4.
    assert TokenCosts(cached=0.1).of_use(account(prompt_tokens=30, cached_device_tokens=30)) == 3
    assert TokenCosts(counted=0.1).of_counting(30) == 3


def test_what_no_worker_has_admitted_costs_nothing() -> None:
    assert TokenCosts().of_use(Account("model", "", prompt_tokens=100, completion_tokens=5)) == 0


def test_counting_costs_what_is_configured_before_and_after() -> None:
    assert TokenCosts().of_counting(1000) == 0
    costs = TokenCosts(counted=0.25)
    assert costs.of_counting(10) == costs.of_use(Account("model", counted_tokens=10)) == 3
