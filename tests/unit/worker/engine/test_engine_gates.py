"""A sequence computes behind a load that is under way, where the transfer opens a gate; and again if that fails."""

from collections.abc import Callable

import pytest

from hicache.copies.fake_transfer import ManualTransfer
from hicache.copies.transfer import Ticket
from tests.unit.worker.engine.harness import answer, make_request, prompt
from tests.unit.worker.engine.test_engine_loads import HELD, begin_load, warm_rig
from tests.unit.worker.engine.tiered_rig import TieredRig
from worker.errors import FailureCode


class Gate:
    """What happens to the load while the forward pass waits for it."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self._happens = happens
        self.waits = 0

    def wait(self, layer: int) -> None:
        self.waits += 1
        if self.waits == 1:
            self._happens()


def by_hand(rig: TieredRig) -> ManualTransfer:
    assert isinstance(rig.transfer, ManualTransfer)
    return rig.transfer


def open_gate(rig: TieredRig, happens: Callable[[Ticket], None]) -> Gate:
    [ticket] = rig.loads
    gate = Gate(lambda: happens(ticket))
    by_hand(rig).begin(ticket)
    ticket.open(gate)
    return gate


def comes_well(rig: TieredRig, ticket: Ticket) -> None:
    by_hand(rig).finish(ticket)


def comes_and_nobody_has_noticed(rig: TieredRig, ticket: Ticket) -> None:
    by_hand(rig)._copy_content(ticket.copy)


def fails_after_all(rig: TieredRig, ticket: Ticket) -> None:
    by_hand(rig)._copy_content(ticket.copy)
    by_hand(rig).fail(ticket, torn=False)


def test_a_follower_computes_in_the_next_step_and_its_hit_counts() -> None:
    rig = warm_rig()
    tokens = begin_load(rig)
    num_runs = rig.executor.num_runs
    gate = open_gate(rig, lambda ticket: comes_well(rig, ticket))
    rig.step()
    assert (gate.waits, rig.executor.num_runs) == (1, num_runs + 1)
    assert rig.tokens(0) == answer(tokens, 4)[:1]
    assert (rig.admission(0).hit.device, rig.admission(0).hit.host) == (0, 40)
    rig.run()
    assert rig.tokens(0) == answer(tokens, 4)
    rig.settle()
    rig.assert_nothing_is_left()


def test_what_was_computed_before_the_load_is_known_to_have_ended_is_computed_again() -> None:
    rig = warm_rig()
    tokens = begin_load(rig)
    gate = open_gate(rig, lambda ticket: comes_and_nobody_has_noticed(rig, ticket))
    rig.step()
    assert rig.tokens(0) == []
    rig.step()
    assert gate.waits == 2
    rig.end_load()
    rig.run()
    assert rig.tokens(0) == answer(tokens, 4)
    assert rig.admission(0).hit.host == 40
    rig.settle()
    rig.assert_nothing_is_left()


@pytest.mark.parametrize("beside", [False, True])
def test_what_was_computed_behind_a_load_that_failed_is_computed_again_without(beside: bool) -> None:
    rig = warm_rig()
    tokens = begin_load(rig)
    open_gate(rig, lambda ticket: fails_after_all(rig, ticket))
    if beside:
        rig.submit(make_request(1, prompt(20, 1)))
    rig.step()
    assert rig.tokens(0) == []
    rig.run()
    assert rig.tokens(0) == answer(tokens, 4)
    assert rig.admission(0).hit.total == 0
    if beside:
        assert rig.tokens(1) == answer(prompt(20, 1), 4)
    rig.settle()
    rig.assert_nothing_is_left()


def test_a_follower_that_is_cancelled_leaves_nothing_behind() -> None:
    rig = warm_rig()
    begin_load(rig)
    open_gate(rig, lambda ticket: comes_and_nobody_has_noticed(rig, ticket))
    rig.step()
    rig.engine.cancel(make_request(0, HELD).sequence_id, rig.now)
    rig.step()
    rig.settle()
    rig.assert_nothing_is_left()


def test_a_follower_whose_load_has_failed_by_the_time_it_is_cancelled_leaves_nothing_behind() -> None:
    rig = warm_rig()
    begin_load(rig)
    [ticket] = rig.loads
    open_gate(rig, lambda ticket: comes_and_nobody_has_noticed(rig, ticket))
    rig.step()
    by_hand(rig).fail(ticket, torn=False)
    rig.engine.idle(rig.now)  # the lease has shrunk; the sequence would learn of it in the next step
    rig.engine.cancel(make_request(0, HELD).sequence_id, rig.now)
    rig.run()
    assert rig.failure(0).code is FailureCode.CANCELLED
    rig.settle()
    rig.assert_nothing_is_left()
