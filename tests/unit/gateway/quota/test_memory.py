"""What a gateway remembers of its decisions."""

import pytest

from gateway.quota.bounds import Bounds
from gateway.quota.memory import Paces, Refusals

ACME, GLOBEX = ("acme", 1.0), ("globex", 1.0)


def test_a_refusal_holds_until_its_time_and_counts_down() -> None:
    refusals = Refusals()
    assert refusals.opens_in(ACME, 10, 100.0) == 0
    refusals.remember(ACME, 10, 100.0, 5.0)
    assert refusals.opens_in(ACME, 10, 100.0) == 5
    assert refusals.opens_in(ACME, 10, 104.5) == 0.5
    assert refusals.opens_in(ACME, 10, 105.0) == 0
    assert refusals.opens_in(GLOBEX, 10, 100.0) == 0


def test_a_refusal_does_not_outlive_a_change_of_the_limit() -> None:
    refusals = Refusals()
    refusals.remember(ACME, 10, 100.0, 5.0)
    assert refusals.opens_in(ACME, 11, 100.0) == 0


def test_a_refusal_does_not_meet_another_tenant_under_the_same_id() -> None:
    refusals = Refusals()
    refusals.remember(ACME, 10, 100.0, 5.0)
    assert refusals.opens_in(("acme", 2.0), 10, 100.0) == 0


def test_what_no_longer_holds_is_forgotten() -> None:
    refusals = Refusals()
    refusals.remember(ACME, 10, 100.0, 5.0)
    refusals.remember(GLOBEX, 10, 100.0, 50.0)
    refusals.forget(105.0)
    assert refusals.opens_in(ACME, 10, 100.0) == 0
    assert refusals.opens_in(GLOBEX, 10, 100.0) == 50


def test_the_wait_for_a_place_is_estimated_by_how_long_requests_take() -> None:
    paces = Paces()
    for _ in range(50):
        paces.ended("acme", 8.0)
    assert paces.until_place("acme", Bounds(max_concurrent_requests=4, max_queued_requests=1)) == pytest.approx(4.0)
    assert paces.until_place("acme", Bounds(max_concurrent_requests=1, max_queued_requests=99)) == 60
    assert paces.until_place("globex", Bounds(max_concurrent_requests=1000)) == 0.05
