"""The arithmetic of windows against somebody who remembers everything."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gateway.quota.bounds import Bounds
from gateway.quota.windows import NEVER, Window, opens_in

# Sixty-fourths of a second are exact as floats, so that "just before" and "at" are what they say.
MOMENTS = st.integers(0, 64 * 200).map(lambda ticks: ticks / 64)
LIMIT = 50


# When, how much, and then: whose unused part is given back, if anybody's, and how much of it in tenths.
STEPS = st.tuples(MOMENTS, st.integers(1, 30), st.none() | st.integers(0, 1000), st.integers(0, 10))


@given(st.lists(STEPS))
def test_no_span_of_a_minute_has_more_in_it_than_the_limit(steps: list[tuple[float, int, int | None, int]]) -> None:
    window = Window()
    admitted: list[tuple[float, int]] = []
    for now, amount, done, tenths in sorted(steps, key=lambda step: step[0]):
        if window.opens_in(now, amount, LIMIT) == 0:
            window.charge(now, amount)
            admitted.append((now, amount))
        if admitted and done is not None:
            at, charged = admitted[done % len(admitted)]
            unused = charged * tenths // 10
            window.give_back(at, unused)
            admitted[done % len(admitted)] = (at, charged - unused)
        assert sum(amount for at, amount in admitted if now - 60 <= at) <= LIMIT


@given(st.lists(st.tuples(MOMENTS, st.integers(1, 30))), st.integers(1, LIMIT))
def test_the_time_that_is_told_is_the_earliest(charged: list[tuple[float, int]], amount: int) -> None:
    window = Window()
    now = 0.0
    for now, used in sorted(charged):
        window.charge(now, used)
    opens = window.opens_in(now, amount, LIMIT)
    assert 0 <= opens <= 61
    assert window.opens_in(now + opens, amount, LIMIT) == 0
    if opens > 0:
        fresh = Window()
        for at, used in charged:
            fresh.charge(at, used)
        assert fresh.opens_in(now + opens - 1 / 64, amount, LIMIT) > 0


@given(st.dictionaries(st.integers(0, 200), st.integers(0, 40)), MOMENTS, st.integers(1, 100), st.integers(1, 60))
def test_what_opens_later_agrees_with_looking_at_every_moment(
    buckets: dict[int, int], now: float, amount: int, limit: int
) -> None:
    buckets = {second: used for second, used in buckets.items() if second <= now}

    def fits(at: float) -> bool:
        return sum(used for second, used in buckets.items() if second >= math.floor(at) - 60) + amount <= limit

    if amount > limit:
        assert opens_in(buckets, now, amount, limit) == NEVER
        return
    moments = [now, *(math.floor(now) + ahead for ahead in range(1, 63))]
    assert opens_in(buckets, now, amount, limit) == next(at for at in moments if fits(at)) - now


@given(
    st.integers(1, 40),
    st.integers(1, 10**9),
    st.integers(1, 10**9),
    st.integers(1, 10**6),
    st.integers(0, 10**6),
)
def test_the_parts_of_all_gateways_are_no_more_than_the_whole(
    gateways: int, requests: int, tokens: int, places: int, line: int
) -> None:
    part = Bounds(requests, tokens, places, line).part(gateways)
    for whole, its in (
        (requests, part.requests_per_minute),
        (tokens, part.tokens_per_minute),
        (places, part.max_concurrent_requests),
    ):
        assert its is not None
        assert its >= 1
        assert its * gateways <= max(whole, gateways)
    assert part.max_queued_requests * gateways <= line


@given(st.integers(1, 40))
def test_what_has_no_limit_has_none_in_parts(gateways: int) -> None:
    assert Bounds().part(gateways) == Bounds()
    assert Bounds().part(gateways).unlimited
