"""Every transfer keeps what a ticket promises: what it says it has copied lies there, and what ended is left alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache.copies.copier import Pace, PoolCopier, ThreadTransfer
from hicache.copies.cuda_copier import CudaTransfer
from hicache.copies.fake_transfer import Chances, InstantTransfer, ManualTransfer, SeededTransfer
from hicache.copies.transfer import Copy, Direction, Ticket, TicketState, Transfer
from hicache.tiers.device import DevicePool, LayerShape
from hicache.tiers.host import HostPool
from tests.gpu.device import CUDA, ON_CUDA
from tests.processes import wait_until
from worker.simulate.movement import timed_transfer

torch.set_num_threads(1)

# Two widths of planes, and K and V that differ.
LAYERS = [LayerShape(2, 8, 8), LayerShape(1, 4, 16), LayerShape(2, 8, 8)]
DEVICE_SLOTS, HOST_SLOTS = 40, 60
TRANSFERS = ["thread", "instant", "manual", "seeded", "timed", pytest.param("cuda", marks=ON_CUDA)]


@dataclass
class Rig:
    """A transfer between two small pools that hold random numbers, and how to wait for it."""

    device_pool: DevicePool
    host_pool: HostPool
    transfer: Transfer
    settle: Callable[[], None]  # returns when no ticket is pending
    done_calls: list[None] = field(default_factory=list)

    def assert_told(self, tickets: list[Ticket]) -> None:
        """Of each end, and of each gate that was opened."""
        news = len(tickets) + sum(ticket.gate is not None for ticket in tickets)
        wait_until(lambda: len(self.done_calls) == news, what="on_done is called for each ticket")

    def copy(self, direction: Direction, device_slots: list[int], host_slots: list[int]) -> Ticket:
        return self.transfer.submit(
            Copy(direction, np.array(device_slots, dtype=np.int32), np.array(host_slots, dtype=np.int32))
        )

    def device_page(self, slots: list[int]) -> bytes:
        return self.device_pool.read_page(np.array(slots, dtype=np.int32))

    def host_page(self, slots: list[int]) -> bytes:
        return self.host_pool.read_page(np.array(slots, dtype=np.int32))


def make_rig(name: str) -> Rig:
    on_cuda = name == "cuda"
    device_pool = DevicePool(LAYERS, DEVICE_SLOTS, torch.bfloat16, CUDA if on_cuda else "cpu")
    host_pool = HostPool(LAYERS, HOST_SLOTS, torch.bfloat16, pin="require" if on_cuda else "never")
    torch.manual_seed(0)
    for group in (*device_pool.planes.groups, *host_pool.planes.groups):
        group.normal_()
    calls: list[None] = []

    def told() -> None:
        calls.append(None)

    if on_cuda:
        cuda = CudaTransfer(device_pool, host_pool, on_done=told)
        return Rig(device_pool, host_pool, cuda, lambda: None, calls)
    content = PoolCopier(device_pool, host_pool)
    if name == "thread":
        # Units shorter than most copies, so that copies consist of several.
        thread = ThreadTransfer(
            device_pool,
            host_pool,
            on_done=told,
            pace=Pace(mirror_unit_tokens=5, load_unit_tokens=7, mirror_duty=1.0),
        )
        return Rig(device_pool, host_pool, thread, lambda: None, calls)
    if name == "timed":
        timed = timed_transfer(device_pool, host_pool, told, tokens_per_s=1e6)
        return Rig(device_pool, host_pool, timed, lambda: None, calls)
    if name == "instant":
        return Rig(device_pool, host_pool, InstantTransfer(content, on_done=told), lambda: None, calls)
    if name == "manual":
        manual = ManualTransfer(content, on_done=told)
        return Rig(device_pool, host_pool, manual, manual.finish_all, calls)
    seeded = SeededTransfer(7, content, chances=Chances(fails=0.0), on_done=told)
    return Rig(device_pool, host_pool, seeded, seeded.drain, calls)


@pytest.fixture(params=TRANSFERS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = make_rig(request.param)
    yield made
    assert made.transfer.close(timeout_s=10)


def ended(rig: Rig, *tickets: Ticket) -> None:
    rig.settle()
    wait_until(lambda: not any(ticket.pending for ticket in tickets), what="the tickets end")


def done(rig: Rig, *tickets: Ticket) -> None:
    ended(rig, *tickets)
    assert [(ticket.state, ticket.error) for ticket in tickets] == [(TicketState.DONE, "")] * len(tickets)


CASES = {
    "one slot": ([3], [9]),
    "a run": (list(range(4, 20)), list(range(30, 46))),
    "the whole pool": (list(range(40)), list(range(20, 60))),
    "scattered slots": ([9, 2, 30, 31, 7, 0, 39], [5, 59, 0, 1, 44, 20, 21]),
    "a run on one side only": (list(range(10, 18)), [8, 2, 4, 6, 0, 30, 40, 50]),
    "runs that are cut at different places": ([0, 1, 2, 3, 20, 21, 22, 23], [10, 11, 40, 41, 42, 43, 44, 50]),
    "runs backwards": ([12, 11, 10, 9], [3, 2, 1, 0]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mirrored_token_lies_in_its_host_slot_and_nothing_else_has_changed(rig: Rig, case: str) -> None:
    device_slots, host_slots = CASES[case]
    others = [slot for slot in range(HOST_SLOTS) if slot not in host_slots]
    device_before, others_before = rig.device_page(list(range(DEVICE_SLOTS))), rig.host_page(others)
    done(rig, rig.copy(Direction.MIRROR, device_slots, host_slots))
    assert rig.host_page(host_slots) == rig.device_page(device_slots)
    assert (rig.device_page(list(range(DEVICE_SLOTS))), rig.host_page(others)) == (device_before, others_before)


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_token_lies_in_its_device_slot_and_nothing_else_has_changed(rig: Rig, case: str) -> None:
    device_slots, host_slots = CASES[case]
    others = [slot for slot in range(DEVICE_SLOTS) if slot not in device_slots]
    host_before, others_before = rig.host_page(list(range(HOST_SLOTS))), rig.device_page(others)
    done(rig, rig.copy(Direction.LOAD, device_slots, host_slots))
    assert rig.device_page(device_slots) == rig.host_page(host_slots)
    assert (rig.host_page(list(range(HOST_SLOTS))), rig.device_page(others)) == (host_before, others_before)


def test_what_was_mirrored_comes_back_into_other_slots_as_it_was(rig: Rig) -> None:
    page = rig.device_page([0, 1, 2, 3])
    done(rig, rig.copy(Direction.MIRROR, [0, 1, 2, 3], [50, 51, 10, 11]))
    done(rig, rig.copy(Direction.LOAD, [36, 20, 21, 22], [50, 51, 10, 11]))
    assert rig.device_page([36, 20, 21, 22]) == page


def test_many_copies_in_flight_all_end_and_each_is_told(rig: Rig) -> None:
    tickets = [rig.copy(Direction.MIRROR, [slot], [slot + 20]) for slot in range(20)]
    tickets += [rig.copy(Direction.LOAD, [slot], [slot - 20]) for slot in range(20, 40)]
    done(rig, *tickets)
    assert rig.host_page(list(range(20, 40))) == rig.device_page(list(range(20)))
    assert rig.device_page(list(range(20, 40))) == rig.host_page(list(range(20)))
    rig.assert_told(tickets)


def test_a_copy_of_no_token_is_done(rig: Rig) -> None:
    done(rig, rig.copy(Direction.MIRROR, [], []))


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(
    ("device_slots", "host_slots"), [([DEVICE_SLOTS], [0]), ([0], [HOST_SLOTS]), ([-1], [0]), ([0], [-1])]
)
def test_a_copy_that_goes_wrong_fails_alone(
    rig: Rig, direction: Direction, device_slots: list[int], host_slots: list[int]
) -> None:
    before = rig.copy(Direction.MIRROR, [1], [1])
    wrong = rig.copy(direction, device_slots, host_slots)
    after = rig.copy(Direction.MIRROR, [2], [2])
    ended(rig, before, wrong, after)
    assert wrong.state is TicketState.FAILED
    assert "slots must be in 0.." in wrong.error
    done(rig, before, after)
    rig.assert_told([before, wrong, after])


def test_a_cancelled_copy_ends_as_done_or_as_cancelled(rig: Rig) -> None:
    tickets = [rig.copy(Direction.MIRROR, [slot], [slot]) for slot in range(20)]
    for ticket in tickets:
        ticket.cancel()
    ended(rig, *tickets)
    for slot, ticket in enumerate(tickets):
        if ticket.state is TicketState.DONE:
            assert rig.host_page([slot]) == rig.device_page([slot])
        else:
            assert ticket.error == "cancelled"


def test_after_the_close_nothing_is_pending_and_what_comes_fails(rig: Rig) -> None:
    tickets = [rig.copy(Direction.MIRROR, list(range(30)), list(range(10, 40))) for _ in range(5)]
    assert rig.transfer.close(timeout_s=10)
    late = rig.copy(Direction.LOAD, [0], [0])
    for ticket in (*tickets, late):
        assert not ticket.pending
        assert ticket.state is TicketState.DONE or ticket.error == "the transfer is closed"
    assert late.state is TicketState.FAILED
    assert rig.transfer.close(timeout_s=10)


@pytest.mark.parametrize("name", TRANSFERS)
@settings(max_examples=15)
@given(data=st.data())
def test_any_slots_in_any_order_are_copied_one_to_one(name: str, data: st.DataObject) -> None:
    rig = make_rig(name)
    num_tokens = data.draw(st.integers(1, 30))
    device_slots = data.draw(st.permutations(range(DEVICE_SLOTS)))[:num_tokens]
    host_slots = data.draw(st.permutations(range(HOST_SLOTS)))[:num_tokens]
    # Sorted stretches make runs.
    cut = data.draw(st.integers(0, num_tokens))
    device_slots = sorted(device_slots[:cut]) + device_slots[cut:]
    host_slots = sorted(host_slots[:cut]) + host_slots[cut:]
    mirrored = rig.copy(Direction.MIRROR, device_slots, host_slots)
    done(rig, mirrored)
    assert rig.host_page(host_slots) == rig.device_page(device_slots)
    assert rig.transfer.close(timeout_s=10)


def test_slots_that_are_not_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="of one length, got shapes"):
        Copy(Direction.LOAD, np.arange(3, dtype=np.int32), np.arange(4, dtype=np.int32))
