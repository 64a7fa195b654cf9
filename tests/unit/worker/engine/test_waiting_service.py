"""Who is served first by what tenants have had, and what is remembered of them."""

import pytest

from tests.unit.worker.engine.waiting_sequences import finish, waiting
from worker.engine.sequence import Sequence
from worker.engine.waiting.service import FairService


def service(cached_token_cost: float = 0.1, quantum_tokens: int = 1) -> FairService:
    return FairService(cached_token_cost, quantum_tokens)


def serve(turns: FairService, sequence: Sequence, num_outputs: int, cached_tokens: int = 0) -> None:
    """Let a sequence arrive, run and end."""
    turns.arrived(sequence)
    turns.started(sequence, cached_tokens)
    finish(sequence, cached_tokens, num_outputs)
    turns.settled(sequence)
    turns.check()


def first(turns: FairService, *tenants: str) -> str:
    return min(tenants, key=turns.key)


def test_a_request_costs_what_is_computed_and_put_out_and_a_part_of_what_is_cached() -> None:
    turns = service(cached_token_cost=0.25)
    serve(turns, waiting(0, [1] * 100, max_new_tokens=10), num_outputs=10, cached_tokens=80)
    assert turns.level("a") == 20 + 0.25 * 80 + 10


def test_the_whole_cost_is_charged_when_a_request_starts() -> None:
    turns, sequence = service(), waiting(0, [1] * 100, max_new_tokens=50)
    turns.arrived(sequence)
    turns.started(sequence, 0)
    assert turns.level("a") == 150


def test_a_request_that_ends_early_costs_what_it_had() -> None:
    turns, sequence = service(), waiting(0, [1] * 100, max_new_tokens=50)
    turns.arrived(sequence)
    turns.started(sequence, 0)
    finish(sequence, 0, num_outputs=3)
    turns.settled(sequence)
    assert turns.level("a") == 103


def test_one_that_was_cancelled_in_its_prompt_costs_what_was_computed_of_it() -> None:
    turns, sequence = service(), waiting(0, [1] * 100, max_new_tokens=50)
    turns.arrived(sequence)
    turns.started(sequence, 0)
    sequence.num_computed = 30
    turns.settled(sequence)
    assert turns.level("a") == 30


def test_one_that_never_started_costs_nothing() -> None:
    turns, sequence = service(), waiting(0)
    turns.arrived(sequence)
    turns.settled(sequence)
    turns.left(sequence)
    assert turns.level("a") == 0


def test_a_paused_request_is_not_charged_again() -> None:
    turns, sequence = service(), waiting(0, [1] * 100, max_new_tokens=50)
    turns.arrived(sequence)
    turns.started(sequence, 0)
    sequence.num_pauses = 1
    turns.arrived(sequence)
    turns.started(sequence, 60)
    assert turns.level("a") == 150


@pytest.mark.parametrize("found", [0, 60, 109])
def test_what_was_begun_elsewhere_costs_its_rest_and_its_beginning_as_if_it_were_cached(found: int) -> None:
    turns, sequence = service(), waiting(0, [1] * 100, max_new_tokens=50, inherited=[1] * 10)
    turns.arrived(sequence)
    turns.started(sequence, found)
    assert turns.level("a") == 0.1 * 110 + 40
    finish(sequence, found, num_outputs=3)
    turns.settled(sequence)
    assert turns.level("a") == pytest.approx(0.1 * 110 + 3)


def test_one_begun_elsewhere_that_was_cancelled_before_it_had_anything_costs_what_was_done() -> None:
    turns, sequence = service(), waiting(0, [1] * 100, max_new_tokens=50, inherited=[1] * 10)
    turns.arrived(sequence)
    turns.started(sequence, 0)
    sequence.num_computed = 30
    turns.settled(sequence)
    assert turns.level("a") == pytest.approx(0.1 * 30)


def test_what_others_put_out_on_average_includes_what_was_begun_elsewhere() -> None:
    turns = service()
    for order in range(200):
        serve(
            turns,
            waiting(order, [1], max_new_tokens=100_000, ignore_eos=False, inherited=[1] * 5),
            num_outputs=3,
        )
    before = turns.level("a")
    new = waiting(200, [1], max_new_tokens=100_000, ignore_eos=False)
    turns.arrived(new)
    turns.started(new, 0)
    assert turns.level("a") - before == pytest.approx(1 + 8, abs=0.1)


def test_a_weight_divides_the_cost() -> None:
    turns = service()
    serve(turns, waiting(0, [1] * 90, max_new_tokens=10, weight=4.0), num_outputs=10)
    assert turns.level("a") == 25


def test_who_may_put_out_all_that_fits_is_charged_what_its_requests_put_out_on_average() -> None:
    turns = service()
    for order in range(200):
        serve(turns, waiting(order, [1], max_new_tokens=100_000, ignore_eos=False), num_outputs=8)
    before = turns.level("a")
    sequence = waiting(200, [1], max_new_tokens=100_000, ignore_eos=False)
    turns.arrived(sequence)
    turns.started(sequence, 0)
    assert turns.level("a") - before == pytest.approx(1 + 8, abs=0.1)


def test_the_least_served_tenant_goes_first() -> None:
    turns = service()
    for tenant in "ab":
        turns.arrived(waiting(1, tenant=tenant))
    serve(turns, waiting(0, tenant="a"), num_outputs=4)
    assert first(turns, "a", "b") == "b"


def test_of_equals_the_one_goes_first_whose_turn_is_longest_ago() -> None:
    turns = service()
    for tenant in "ab":
        turns.arrived(waiting(1, tenant=tenant))
        turns.arrived(waiting(2, tenant=tenant))
    for tenant in "ba":
        turns.started(waiting(1, tenant=tenant), 0)
    assert first(turns, "a", "b") == "b"


def test_a_tenant_goes_on_until_its_quantum_is_used_up() -> None:
    turns = service(quantum_tokens=100)
    serve(turns, waiting(0, [1] * 96, tenant="c"), num_outputs=4)  # requests of 100 tokens are known
    for order in range(1, 21):
        turns.arrived(waiting(order, [1] * 36, tenant="ab"[order % 2]))
    started = []
    for order in (1, 3, 5, 7, 9):
        tenant = first(turns, "a", "b")
        started.append(tenant)
        turns.started(waiting(order + (tenant == "a"), [1] * 36, tenant=tenant), 0)
    # 40 tokens each: three of them use a quantum of 100 up.
    assert started[:3] == [started[0]] * 3
    assert started[3:] == [started[3]] * 2
    assert started[3] != started[0]


def test_being_away_earns_nothing() -> None:
    turns = service()
    serve(turns, waiting(0, tenant="away"), num_outputs=4)
    for order in range(1, 100):
        turns.arrived(waiting(order, tenant="here"))
    for order in range(1, 90):
        turns.started(waiting(order, tenant="here"), 0)
        finished = waiting(order, tenant="here")
        finish(finished, 0, 4)
        turns.settled(finished)
    turns.arrived(waiting(200, tenant="away"))
    lead = turns.level("here") - turns.level("away")
    # What the other one has running hasn't been had yet, and that is all.
    assert 0 <= lead <= 90 * 7
    assert turns.level("away") > 0


def test_who_comes_back_starts_at_the_level_of_the_least_served_that_waits() -> None:
    turns = service()
    serve(turns, waiting(0, [1] * 996, tenant="b"), num_outputs=4)
    turns.arrived(waiting(1, tenant="b"))
    turns.arrived(waiting(2, tenant="a"))
    assert turns.level("a") == turns.level("b") == 1000


def test_who_has_had_more_keeps_that_while_it_is_away() -> None:
    turns = service()
    serve(turns, waiting(0, [1] * 996, tenant="b"), num_outputs=4)
    turns.arrived(waiting(2, tenant="a"))
    serve(turns, waiting(1, [1] * 500, tenant="b"), num_outputs=4)
    turns.arrived(waiting(3, tenant="b"))
    assert first(turns, "a", "b") == "a"


def test_what_others_have_running_counts_for_who_joins() -> None:
    turns = service()
    flood = [waiting(order, [1] * 50, tenant="b", max_new_tokens=950) for order in range(10)]
    for sequence in flood:
        turns.arrived(sequence)
    for sequence in flood[:9]:
        turns.started(sequence, 0)
    turns.arrived(waiting(20, tenant="a"))
    assert turns.level("b") == 9000
    assert turns.level("a") == 0


def test_nobody_starts_who_is_ahead_of_one_that_waits_by_more_than_the_largest_request() -> None:
    turns = service()
    for order in range(10):
        turns.arrived(waiting(order, [1] * 96, tenant="a"))
    turns.arrived(waiting(20, tenant="b"))
    num_started = 0
    while turns.may_start("a", turns.limit(["a", "b"])):
        turns.started(waiting(num_started, [1] * 96, tenant="a"), 0)
        num_started += 1
    assert num_started == 2
    assert turns.may_start("b", turns.limit(["a", "b"]))
    assert turns.may_start("a", turns.limit(["a"]))


def test_memory_is_bounded_however_many_tenants_come_and_go() -> None:
    turns = service()
    for order in range(5000):
        serve(turns, waiting(order, tenant=f"tenant-{order}"), num_outputs=4)
    assert turns.num_tenants <= 1024
