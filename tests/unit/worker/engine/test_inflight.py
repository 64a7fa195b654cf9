"""Who waits for whose prefix, and for how long at most."""

import numpy as np
import pytest

from hicache.keys import PrefixKey, Segment
from tests.unit.worker.engine.harness import TENANT_A, TENANT_B, make_request, prompt
from worker.engine.inflight import InFlightPrefixes, shared_tokens
from worker.engine.sequence import Sequence

NUM_SHARED = 100


def sequence(order: int, tokens: list[int] | None = None, priority: int = 0) -> Sequence:
    request = make_request(order, tokens or [*prompt(NUM_SHARED), order], priority=priority)
    return Sequence(request, order, 0.0, frozenset())


def key(*segments: tuple[object, list[int]]) -> PrefixKey:
    return PrefixKey(tuple(Segment(namespace, np.array(tokens)) for namespace, tokens in segments))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (key((TENANT_A, [1, 2, 3, 4])), 4),
        (key((TENANT_A, [1, 2, 3])), 3),
        (key((TENANT_A, [1, 2, 3, 4, 5])), 4),
        (key((TENANT_A, [1, 2, 9, 4])), 2),
        (key((TENANT_A, [9, 2, 3, 4])), 0),
        (key((TENANT_B, [1, 2, 3, 4])), 0),
        (key((TENANT_A, [1, 2]), (TENANT_B, [3, 4])), 2),
    ],
)
def test_tokens_are_shared_up_to_the_first_difference_in_token_or_namespace(other: PrefixKey, expected: int) -> None:
    assert shared_tokens(key((TENANT_A, [1, 2, 3, 4])), other) == expected
    assert shared_tokens(other, key((TENANT_A, [1, 2, 3, 4]))) == expected


def test_tokens_are_shared_across_a_barrier_that_both_have() -> None:
    one = key((TENANT_A, [1, 2]), (TENANT_B, [3, 4, 5]))
    other = key((TENANT_A, [1, 2]), (TENANT_B, [3, 4, 6]))
    assert shared_tokens(one, other) == 4


def test_a_wait_ends_when_the_shared_part_is_computed() -> None:
    in_flight, leader, follower = InFlightPrefixes(1, 16), sequence(0), sequence(1)
    in_flight.started(leader)
    assert in_flight.follow(follower, hit_tokens=0)
    leader.num_computed = NUM_SHARED - 1
    assert in_flight.is_following(follower)
    leader.num_computed = NUM_SHARED
    assert not in_flight.is_following(follower)


def test_only_whole_pages_are_awaited() -> None:
    in_flight, leader, follower = InFlightPrefixes(16, 16), sequence(0), sequence(1)
    in_flight.started(leader)
    assert in_flight.follow(follower, hit_tokens=0)
    leader.num_computed = 96
    assert not in_flight.is_following(follower)


def test_what_is_cached_already_is_no_reason_to_wait() -> None:
    in_flight = InFlightPrefixes(1, 16)
    in_flight.started(sequence(0))
    assert not in_flight.follow(sequence(1), hit_tokens=NUM_SHARED - 15)
    assert in_flight.follow(sequence(1), hit_tokens=NUM_SHARED - 16)


def test_the_leader_with_most_in_common_is_followed() -> None:
    in_flight = InFlightPrefixes(1, 16)
    little, much = sequence(0, [*prompt(50), 1, 2]), sequence(1)
    in_flight.started(little)
    in_flight.started(much)
    follower = sequence(2)
    assert in_flight.follow(follower, hit_tokens=0)
    in_flight.ended(little)
    assert in_flight.is_following(follower)
    in_flight.ended(much)
    assert not in_flight.is_following(follower)


def test_nobody_follows_a_sequence_of_lower_priority() -> None:
    in_flight = InFlightPrefixes(1, 16)
    in_flight.started(sequence(0, priority=1))
    assert not in_flight.follow(sequence(1, priority=2), hit_tokens=0)
    assert in_flight.follow(sequence(2, priority=1), hit_tokens=0)


def test_a_sequence_follows_a_bounded_number_of_leaders() -> None:
    in_flight, follower = InFlightPrefixes(1, 16), sequence(1000)
    num_waits = 0
    for order in range(20):
        leader = sequence(order)
        in_flight.started(leader)
        num_waits += in_flight.follow(follower, hit_tokens=0)
        in_flight.ended(leader)
        assert not in_flight.is_following(follower)
    assert num_waits == 4
