"""What every policy of the waiting line keeps, and what sets each apart."""

from collections import Counter

import pytest

from hicache.keys import Namespace
from tests.unit.worker.engine.harness import make_request
from worker.config import EngineConfig
from worker.engine import waiting
from worker.engine.sequence import Sequence
from worker.engine.waiting import WaitingLine

NAMES = ["fair", "fcfs", "lpm", "dfs_weight", "priority"]
BY_TENANT = ["fair", "lpm", "dfs_weight"]
CONFIG = EngineConfig(max_wait_s=1000.0)


class NothingCached:
    page_size = 1

    def cached_tokens(self, sequence: Sequence) -> int:
        return 0


class CachedByOrder:
    """Has what a test says, of a sequence by its order."""

    page_size = 1

    def __init__(self, tokens: dict[int, int]) -> None:
        self.tokens = tokens
        self.asked: Counter[int] = Counter()

    def cached_tokens(self, sequence: Sequence) -> int:
        self.asked[sequence.order] += 1
        return self.tokens.get(sequence.order, 0)


def sequence(order: int, priority: int = 0, num_pauses: int = 0, tenant: str = "a") -> Sequence:
    namespace = Namespace(tenant.encode() * 16)
    request = make_request(order, priority=priority, tenant=tenant, namespace=namespace)
    made = Sequence(request, order, float(order), frozenset())
    made.num_pauses = num_pauses
    return made


def ready(_: Sequence) -> bool:
    return True


@pytest.fixture(params=NAMES)
def line(request: pytest.FixtureRequest) -> WaitingLine:
    return waiting.by_name(request.param, CONFIG, NothingCached())


def orders(line: WaitingLine) -> list[int]:
    return [candidate.order for candidate in line.candidates(0.0, ready)]


def test_equals_come_in_the_order_of_arrival(line: WaitingLine) -> None:
    for order in (0, 1, 2, 3):
        line.push(sequence(order))
    assert orders(line) == [0, 1, 2, 3]


def test_whoever_was_begun_elsewhere_comes_before_new_ones_of_its_standing(line: WaitingLine) -> None:
    line.push(sequence(3))
    going_on = Sequence(make_request(7, max_new_tokens=4, tenant="a"), 7, 7.0, frozenset(), inherited=[1, 2])
    line.push(going_on)
    assert next(line.candidates(0.0, lambda _: True)) is going_on
    line.start(going_on, 0)
    line.check()


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
        first = next(line.candidates(0.0, ready))
        line.start(first, 0)
        taken.append(first.order)
    assert sorted(taken) == list(range(20))


def test_those_handed_out_may_be_removed_meanwhile(line: WaitingLine) -> None:
    for order in range(5):
        line.push(sequence(order))
    seen = []
    for candidate in line.candidates(0.0, ready):
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


def test_one_that_ends_while_it_waits_is_gone(line: WaitingLine) -> None:
    sequences = [sequence(order) for order in range(3)]
    for one in sequences:
        line.push(one)
    line.settle(sequences[1])
    line.remove(sequences[1])
    assert orders(line) == [0, 2]
    assert {one.order for one in line.members()} == {0, 2}


def test_whoever_is_not_ready_is_not_handed_out_and_keeps_nobody_up(line: WaitingLine) -> None:
    for order in range(4):
        line.push(sequence(order))
    assert [one.order for one in line.candidates(0.0, lambda one: one.order % 2 == 1)] == [1, 3]
    assert orders(line) == [0, 1, 2, 3]


def test_what_is_pushed_meanwhile_waits_for_the_next_call(line: WaitingLine) -> None:
    for order in range(3):
        line.push(sequence(order))
    seen = []
    for candidate in line.candidates(0.0, ready):
        seen.append(candidate.order)
        line.start(candidate, 0)
        if candidate.order == 1:
            candidate.num_pauses = 1
            line.push(candidate)
    assert seen == [0, 1, 2]
    assert orders(line) == [1]


def test_a_paused_sequence_starts_again_and_ends(line: WaitingLine) -> None:
    one = sequence(0)
    line.push(one)
    line.start(one, 0)
    one.num_pauses = 1
    line.push(one)
    line.start(one, 3)
    line.settle(one)
    assert len(line) == 0


@pytest.mark.parametrize("name", BY_TENANT)
def test_tenants_take_turns(name: str) -> None:
    line = waiting.by_name(name, CONFIG, NothingCached())
    for order in range(6):
        line.push(sequence(order, tenant="a"))
    for order in range(6, 12):
        line.push(sequence(order, tenant="b"))
    started = []
    while len(line):
        first = next(line.candidates(0.0, ready))
        line.start(first, 0)
        started.append(first.request.tenant)
    for index in range(0, 12, 2):
        assert set(started[index : index + 2]) == {"a", "b"}, started


@pytest.mark.parametrize("name", ["fair", "lpm"])
def test_the_longest_cached_prefix_of_a_tenant_comes_first(name: str) -> None:
    line = waiting.by_name(name, CONFIG, CachedByOrder({0: 0, 1: 2, 2: 1, 3: 2}))
    for order in range(4):
        line.push(sequence(order))
    assert orders(line) == [1, 3, 2, 0]


def test_first_come_first_served_ignores_priority() -> None:
    line = waiting.by_name("fcfs", CONFIG, NothingCached())
    line.push(sequence(0, priority=0))
    line.push(sequence(1, priority=9))
    assert orders(line) == [0, 1]


@pytest.mark.parametrize("name", ["fair", "lpm", "dfs_weight", "priority"])
def test_the_higher_priority_comes_first_even_before_a_paused_one(name: str) -> None:
    line = waiting.by_name(name, CONFIG, NothingCached())
    line.push(sequence(0, priority=0, num_pauses=1))
    line.push(sequence(1, priority=0, tenant="b"))
    line.push(sequence(2, priority=9))
    assert orders(line)[0] == 2
    assert sorted(orders(line)) == [0, 1, 2]


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="dfs_weight, fair, fcfs, lpm, priority"):
        waiting.by_name("random", CONFIG, NothingCached())
