"""Tickets, and the fakes' own promises beyond the contract."""

import subprocess
import sys

import numpy as np
import pytest

from hicache.copies.fake_transfer import Chances, InstantTransfer, ManualTransfer, SeededTransfer
from hicache.copies.transfer import Copy, Direction, Ticket, TicketState


class Slots:
    """Device and host as dictionaries: slot → what lies there."""

    def __init__(self) -> None:
        self.device = {slot: f"device {slot}" for slot in range(100)}
        self.host = {slot: f"host {slot}" for slot in range(100)}

    def __call__(self, copy: Copy) -> None:
        for device_slot, host_slot in zip(copy.device_slots.tolist(), copy.host_slots.tolist(), strict=True):
            if copy.direction is Direction.MIRROR:
                self.host[host_slot] = self.device[device_slot]
            else:
                self.device[device_slot] = self.host[host_slot]


def copy(direction: Direction = Direction.MIRROR, *slots: int) -> Copy:
    both = np.array(slots or (1, 2, 3, 4), dtype=np.int32)
    return Copy(direction, both, both)


def ticket() -> Ticket:
    return Ticket(copy())


def test_a_ticket_is_pending_until_it_is_finished() -> None:
    mine = ticket()
    assert (mine.state, mine.error, mine.seconds, mine.layers_done) == (TicketState.PENDING, "", 0.0, 0)
    assert mine.begin()
    mine.advance(3)
    mine.finish(0.25)
    assert (mine.state, mine.error, mine.seconds, mine.layers_done) == (TicketState.DONE, "", 0.25, 3)


def test_a_ticket_that_failed_says_why() -> None:
    mine = ticket()
    mine.fail("no reason")
    assert (mine.state, mine.error, mine.pending) == (TicketState.FAILED, "no reason", False)


def test_a_ticket_cancelled_before_it_begins_never_does() -> None:
    mine = ticket()
    mine.cancel()
    assert mine.pending
    assert not mine.begin()
    assert (mine.state, mine.error) == (TicketState.FAILED, "cancelled")


def test_a_ticket_ends_once() -> None:
    mine = ticket()
    mine.finish(0.0)
    with pytest.raises(AssertionError):
        mine.finish(0.0)
    with pytest.raises(AssertionError):
        mine.fail("too late")
    with pytest.raises(AssertionError):
        mine.advance(1)


def test_cancelling_what_has_ended_changes_nothing() -> None:
    mine = ticket()
    mine.finish(0.0)
    mine.cancel()
    assert mine.state is TicketState.DONE


def test_contract_and_fakes_need_no_torch() -> None:
    modules = ", ".join(f"hicache.copies.{name}" for name in ("cost", "fake_transfer", "transfer"))
    program = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_instant_copy_is_done_at_once() -> None:
    slots = Slots()
    assert InstantTransfer(slots).submit(copy()).state is TicketState.DONE
    assert slots.host[1] == "device 1"


def test_a_manual_copy_moves_nothing_before_the_test_ends_it() -> None:
    slots = Slots()
    transfer = ManualTransfer(slots)
    mine = transfer.submit(copy())
    assert transfer.pending == [mine]
    assert slots.host[1] == "host 1"
    slots.device[1] = "newer"
    transfer.finish(mine)
    assert slots.host[1] == "newer"
    assert transfer.pending == []


def test_a_manual_transfer_lists_loads_before_mirrors() -> None:
    transfer = ManualTransfer()
    mirror = transfer.submit(copy(Direction.MIRROR))
    load = transfer.submit(copy(Direction.LOAD))
    assert transfer.pending == [load, mirror]


def test_a_manual_copy_fails_untouched_or_torn_as_the_test_likes() -> None:
    slots = Slots()
    transfer = ManualTransfer(slots)
    untouched, torn = transfer.submit(copy()), transfer.submit(copy(Direction.MIRROR, 11, 12, 13, 14))
    transfer.fail(untouched, "cable")
    transfer.fail(torn, torn=True)
    assert (untouched.error, torn.error) == ("cable", "the copy failed")
    assert slots.host[1] == "host 1"
    assert [slots.host[slot] for slot in (11, 12, 13, 14)] == ["device 11", "device 12", "host 13", "host 14"]


def test_a_manual_copy_that_has_begun_cannot_be_cancelled_any_more() -> None:
    transfer = ManualTransfer()
    begun, waiting = transfer.submit(copy()), transfer.submit(copy())
    transfer.begin(begun)
    for mine in (begun, waiting):
        mine.cancel()
        transfer.finish(mine)
    assert (begun.state, waiting.error) == (TicketState.DONE, "cancelled")


def test_a_manual_copy_under_way_survives_the_close_until_the_test_ends_it() -> None:
    transfer = ManualTransfer()
    begun, waiting = transfer.submit(copy()), transfer.submit(copy())
    transfer.begin(begun)
    assert not transfer.close(timeout_s=0)
    assert (begun.state, waiting.state) == (TicketState.PENDING, TicketState.FAILED)
    transfer.finish(begun)
    assert transfer.close(timeout_s=0)


def history(seed: int) -> list[tuple[str, ...]]:
    """The states of 30 tickets, round by round."""
    transfer = SeededTransfer(seed)
    tickets = [transfer.submit(copy()) for _ in range(30)]
    rounds = []
    while transfer.pending:
        transfer.advance()
        rounds.append(tuple(each.state.value for each in tickets))
    return rounds


def test_a_seed_decides_everything() -> None:
    assert history(1) == history(1)
    assert history(1) != history(2)


def test_seeded_copies_end_in_another_order_some_failing_some_stalling() -> None:
    rounds = history(3)
    ends = [next(at for at, states in enumerate(rounds) if states[ticket] != "pending") for ticket in range(30)]
    assert ends != sorted(ends)
    assert max(ends) > 3 * sorted(ends)[15]
    assert {"done", "failed"} == set(rounds[-1])


def test_a_seeded_copy_whose_source_changes_under_way_brings_a_mixture() -> None:
    slots = Slots()
    transfer = SeededTransfer(0, slots, chances=Chances(begins=1.0, ends=1.0, fails=0.0, stalls=0.0))
    transfer.submit(copy())
    transfer.advance()
    for slot in (1, 2, 3, 4):
        slots.device[slot] = "of somebody else"
    transfer.advance()
    assert [slots.host[slot] for slot in (1, 2, 3, 4)] == ["device 1", "device 2"] + 2 * ["of somebody else"]
    assert transfer.pending == []


def test_a_seeded_copy_cancelled_before_it_begins_moves_nothing() -> None:
    slots = Slots()
    transfer = SeededTransfer(0, slots)
    mine = transfer.submit(copy())
    mine.cancel()
    transfer.drain()
    assert mine.error == "cancelled"
    assert slots.host[1] == "host 1"
