import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.window import SlidingRatio

events = st.lists(
    st.tuples(st.floats(0, 20), st.integers(0, 50), st.integers(1, 50)).map(lambda e: (e[0], min(e[1], e[2]), e[2])),
    max_size=60,
)


def test_without_traffic_there_is_no_ratio() -> None:
    assert SlidingRatio().value(now=5.0) is None


def test_the_ratio_is_weighted_by_tokens_and_not_a_mean_of_ratios() -> None:
    ratio = SlidingRatio()
    ratio.add(0, 10, now=0.0)
    ratio.add(90, 90, now=1.0)
    assert ratio.value(now=1.0) == pytest.approx(0.9)


def test_all_misses_are_a_ratio_of_zero() -> None:
    ratio = SlidingRatio()
    ratio.add(0, 10, now=0.0)
    assert ratio.value(now=0.5) == 0.0


def test_an_event_leaves_with_the_window() -> None:
    ratio = SlidingRatio(window_s=60.0)
    ratio.add(1, 2, now=0.9)
    assert ratio.value(now=59.9) == 0.5
    assert ratio.value(now=60.0) is None


def test_a_bucket_must_fit_into_the_window() -> None:
    with pytest.raises(ValueError, match=r"bucket_s \(2\.0\) .* window_s \(1\.0\)"):
        SlidingRatio(window_s=1.0, bucket_s=2.0)


@given(events, st.floats(0, 10))
def test_the_ratio_equals_the_sums_over_the_events_of_the_window(
    steps: list[tuple[float, int, int]], rest: float
) -> None:
    ratio, now, seen = SlidingRatio(window_s=10.0), 0.0, []
    for gap, part, whole in steps:
        now += gap
        ratio.add(part, whole, now=now)
        seen.append((now, part, whole))
    now += rest
    inside = [(part, whole) for at, part, whole in seen if math.floor(at) > math.floor(now) - 10]
    expected = sum(p for p, _ in inside) / sum(w for _, w in inside) if inside else None
    assert ratio.value(now=now) == expected
