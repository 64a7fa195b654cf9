"""What every policy of the waiting line keeps, and what sets each apart."""

import pytest

from tests.unit.worker.engine.harness import make_request
from worker.engine import waiting
from worker.engine.sequence import Sequence
from worker.engine.waiting import WaitingLine

NAMES = ["fcfs", "priority"]


def sequence(order: int, priority: int = 0, num_pauses: int = 0) -> Sequence:
    made = Sequence(make_request(order, priority=priority), order, float(order), frozenset())
    made.num_pauses = num_pauses
    return made


@pytest.fixture(params=NAMES)
def line(request: pytest.FixtureRequest) -> WaitingLine:
    return waiting.by_name(request.param)


def orders(line: WaitingLine) -> list[int]:
    return [candidate.order for candidate in line.candidates()]


def test_equals_come_in_the_order_of_arrival(line: WaitingLine) -> None:
    for order in (0, 1, 2, 3):
        line.push(sequence(order))
    assert orders(line) == [0, 1, 2, 3]


def test_whoever_was_paused_comes_before_new_ones_of_its_standing(line: WaitingLine) -> None:
    line.push(sequence(0))
    line.push(sequence(7, num_pauses=1))
    line.push(sequence(5, num_pauses=2))
    assert orders(line) == [5, 7, 0]


def test_everyone_is_handed_out_exactly_once(line: WaitingLine) -> None:
    for order in range(20):
        line.push(sequence(order, priority=order % 3, num_pauses=order % 2))
    taken = []
    while len(line):
        first = next(line.candidates())
        line.remove(first)
        taken.append(first.order)
    assert sorted(taken) == list(range(20))


def test_those_handed_out_may_be_removed_meanwhile(line: WaitingLine) -> None:
    for order in range(5):
        line.push(sequence(order))
    seen = []
    for candidate in line.candidates():
        seen.append(candidate.order)
        line.remove(candidate)
    assert seen == [0, 1, 2, 3, 4]
    assert len(line) == 0


def test_one_in_the_middle_can_leave(line: WaitingLine) -> None:
    sequences = [sequence(order) for order in range(5)]
    for one in sequences:
        line.push(one)
    line.remove(sequences[2])
    assert orders(line) == [0, 1, 3, 4]


def test_removing_a_stranger_is_an_error(line: WaitingLine) -> None:
    line.push(sequence(0))
    with pytest.raises(KeyError):
        line.remove(sequence(1))


def test_being_told_who_was_served_loses_nobody(line: WaitingLine) -> None:
    line.push(sequence(0))
    line.served("a", computed=100, cached=50)
    assert orders(line) == [0]


def test_first_come_first_served_ignores_priority() -> None:
    line = waiting.by_name("fcfs")
    line.push(sequence(0, priority=0))
    line.push(sequence(1, priority=9))
    assert orders(line) == [0, 1]


def test_priority_puts_the_larger_first_even_before_a_paused_one() -> None:
    line = waiting.by_name("priority")
    line.push(sequence(0, priority=0, num_pauses=1))
    line.push(sequence(1, priority=0))
    line.push(sequence(2, priority=9))
    assert orders(line) == [2, 0, 1]


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="fcfs, priority"):
        waiting.by_name("random")
