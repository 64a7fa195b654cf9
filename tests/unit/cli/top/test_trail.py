import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.top.names import PROMPT, STARTED, WORKER_TTFT
from cli.top.samples import Samples, UnreadableError, parse
from cli.top.trail import Trail, grown, quantile
from tests.unit.cli.top.fleet_world import a_worker, serve_request, shown

WHO = {"worker": "w", "tenant": "a", "adapter": ""}


def prompt_at(value: float, *, started: float | None = None, tenant: str = "a") -> Samples:
    triples = [(PROMPT, WHO | {"tenant": tenant}, value)]
    if started is not None:
        triples.append((STARTED, {}, started))
    return Samples.of(triples)


def total(before: Samples, now: Samples) -> float:
    return sum(grown(before, now).get(PROMPT, {}).values())


def test_a_counter_that_rose_has_grown_by_the_difference() -> None:
    assert total(prompt_at(10), prompt_at(14)) == 4


def test_a_counter_that_fell_began_anew_and_has_grown_by_all_it_shows() -> None:
    assert total(prompt_at(10), prompt_at(3)) == 3


def test_a_process_that_started_anew_counts_from_nothing_even_where_it_shows_more_than_before() -> None:
    assert total(prompt_at(10, started=100), prompt_at(12, started=200)) == 12
    assert total(prompt_at(10, started=100), prompt_at(12, started=100.2)) == 2


def test_a_series_that_was_not_there_at_the_last_look_began_at_nothing() -> None:
    assert total(prompt_at(10), prompt_at(7, tenant="new")) == 7


def test_the_first_look_is_no_growth() -> None:
    trail = Trail(60)
    assert trail.look(1, prompt_at(1000)) is None
    assert trail.window().rate(PROMPT) is None


def test_a_gap_makes_a_long_step_and_not_a_high_rate() -> None:
    trail = Trail(600)
    trail.look(0, prompt_at(0))
    trail.look(100, prompt_at(500))
    assert trail.window().rate(PROMPT) == 5


def test_the_same_scrape_seen_twice_counts_once() -> None:
    trail = Trail(60)
    trail.look(0, prompt_at(0))
    trail.look(10, prompt_at(50))
    assert trail.look(10, prompt_at(50)) is None
    assert trail.window().rate(PROMPT) == 5


def test_what_lies_before_the_window_is_forgotten() -> None:
    trail = Trail(10)
    for at, value in ((0, 0), (5, 100), (10, 100), (15, 100)):
        trail.look(at, prompt_at(value))
    assert trail.window().total(PROMPT) == 0
    trail.forget(100)
    assert trail.window().rate(PROMPT) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["look", "look", "restart", "down"]),
            st.integers(0, 1000),
            st.floats(0.1, 30, allow_nan=False),
        ),
        max_size=40,
    )
)
def test_growth_is_what_was_really_counted_between_looks_whatever_restarts(
    events: list[tuple[str, int, float]],
) -> None:
    """A model of a process that counts and restarts; what it counts and nobody sees before it ends is lost."""
    trail, value, started, now = Trail(math.inf), 0, 0.0, 1000.0
    seen, last, expected = False, 0, 0
    for kind, amount, seconds in events:
        now += seconds
        if kind == "restart":
            value, last, started = 0, 0, now
            now += 2.0
        value += amount
        if kind == "down":
            continue
        step = trail.look(now, prompt_at(value, started=started))
        if seen:
            expected += value - last
            assert step is not None
            assert all(rise > 0 for family in step.growth.values() for rise in family.values())
        seen, last = True, value
    assert trail.window().total(PROMPT) == expected


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=50))
def test_without_a_start_time_growth_is_never_negative_and_at_least_the_rise(values: list[int]) -> None:
    trail = Trail(math.inf)
    for at, value in enumerate(values):
        trail.look(at, prompt_at(value))
    rises = sum(max(0, after - before) for before, after in pairwise(values))
    assert trail.window().total(PROMPT) >= max(rises, values[-1] - values[0], 0)


def test_quantiles_lie_within_the_bucket_that_holds_them() -> None:
    buckets = {0.1: 0.0, 0.25: 10.0, 0.5: 10.0, math.inf: 10.0}
    assert quantile(buckets, 0.5) == pytest.approx(0.175)
    assert quantile(buckets, 1.0) == pytest.approx(0.25)
    assert quantile({0.1: 0.0, math.inf: 4.0}, 0.5) == pytest.approx(0.1)  # nothing is known beyond the last bound
    assert quantile({0.1: 0.0, math.inf: 0.0}, 0.5) is None
    assert quantile({}, 0.5) is None


@given(st.lists(st.sampled_from([0.003, 0.02, 0.2, 2.0, 20.0]), min_size=1, max_size=30), st.sampled_from([0.5, 0.95]))
def test_a_quantile_from_the_products_own_histogram_is_in_the_bucket_of_the_true_one(
    waits: list[float], q: float
) -> None:
    metrics = a_worker()
    trail = Trail(60)
    trail.look(0, shown(metrics.registry))
    for wait in waits:
        metrics.first_token("a", "", wait)
    trail.look(1, shown(metrics.registry))
    found = quantile(trail.window().buckets(WORKER_TTFT), q)
    bounds = [0.0, *sorted(trail.window().buckets(WORKER_TTFT))]
    exact = sorted(waits)[math.ceil(q * len(waits)) - 1]
    low, high = next((low, high) for low, high in pairwise(bounds) if low < exact <= high)
    assert found is not None
    assert low <= found <= high


def test_the_real_exposition_of_a_worker_is_read() -> None:
    metrics = a_worker()
    before = shown(metrics.registry)
    serve_request(metrics, "a", 100, 7, device=60)
    assert sum(grown(before, shown(metrics.registry))[PROMPT].values()) == 100


@pytest.mark.parametrize("text", ["<html><body>404</body></html>", 'a{b="c} 1', "x y z w"])
def test_what_is_no_exposition_is_refused_in_words(text: str) -> None:
    with pytest.raises(UnreadableError, match="no metrics in Prometheus' text format"):
        parse(text)
