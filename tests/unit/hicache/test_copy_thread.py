"""The thread's own promises: who goes first, how it rests, what it survives, how it ends."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from hicache.copies.copier import CopyThread, Pace, PoolCopier, Progress
from hicache.copies.cuda_copier import layer_pieces
from hicache.copies.fake_transfer import ignore_done
from hicache.copies.transfer import Copy, Direction, Ticket, TicketState
from hicache.tiers.device import DevicePool, LayerShape
from hicache.tiers.host import HostPool
from hicache.tiers.runs import runs_between
from tests.processes import wait_until

torch.set_num_threads(1)
LAYERS = [LayerShape(1, 4, 4), LayerShape(1, 4, 8)]


class Gate:
    """A mover that the test lets through unit by unit, and that notes what it was given."""

    num_layers = 3

    def __init__(self) -> None:
        self.moved: list[tuple[Direction, int]] = []
        self._units = threading.Semaphore(0)
        self.waiting = threading.Event()  # set while a unit is under way

    def fence(self) -> None: ...

    def wait(self, layer: int) -> None: ...

    def move(self, copy: Copy, after: object, progress: Progress) -> None:
        self.waiting.set()
        assert self._units.acquire(timeout=20)
        self.waiting.clear()
        self.moved.append((copy.direction, len(copy)))
        if len(copy) == 13:
            raise OSError("13 is unlucky")
        if len(copy) == 17:
            progress.open(self)
        progress.advance(2)

    def let_through(self, units: int) -> None:
        self._units.release(units)


def copy(direction: Direction, num_tokens: int) -> Copy:
    slots = np.arange(num_tokens, dtype=np.int32)
    return Copy(direction, slots, slots)


class Rig:
    def __init__(self) -> None:
        self.gate = Gate()
        self.done = 0
        pace = Pace(mirror_unit_tokens=20, load_unit_tokens=50, mirror_duty=1.0)
        self.thread = CopyThread(self.gate, pace, self._on_done)

    def submit(self, direction: Direction, num_tokens: int) -> Ticket:
        return self.thread.submit(copy(direction, num_tokens))

    def _on_done(self) -> None:
        self.done += 1


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.gate.let_through(1_000)
    assert made.thread.close(timeout_s=10)


def until_ended(*tickets: Ticket) -> None:
    wait_until(lambda: not any(ticket.pending for ticket in tickets), what="the tickets end")


def test_a_load_goes_between_the_units_of_a_mirror_that_is_under_way(rig: Rig) -> None:
    mirror = rig.submit(Direction.MIRROR, 50)
    assert rig.gate.waiting.wait(10)
    load = rig.submit(Direction.LOAD, 30)
    rig.gate.let_through(10)
    until_ended(mirror, load)
    assert rig.gate.moved == [
        (Direction.MIRROR, 20),
        (Direction.LOAD, 30),
        (Direction.MIRROR, 20),
        (Direction.MIRROR, 10),
    ]


def test_a_load_is_not_held_up_by_the_rest_after_a_mirror() -> None:
    gate = Gate()
    gate.let_through(1_000)
    thread = CopyThread(gate, Pace(mirror_unit_tokens=1, mirror_duty=1e-9), ignore_done)
    mirror = thread.submit(copy(Direction.MIRROR, 100))
    wait_until(lambda: bool(gate.moved), what="the first unit is mirrored")
    until_ended(thread.submit(copy(Direction.LOAD, 100)))
    assert mirror.pending
    assert thread.close(timeout_s=10)
    assert mirror.error == "the transfer is closed"


def test_a_copy_in_one_unit_tells_its_layers_and_one_in_several_does_not(rig: Rig) -> None:
    whole, parts = rig.submit(Direction.LOAD, 50), rig.submit(Direction.LOAD, 51)
    rig.gate.let_through(1)
    wait_until(lambda: not whole.pending, what="the first copy ends")
    assert (whole.layers_done, parts.layers_done) == (3, 0)
    rig.gate.let_through(2)
    until_ended(parts)
    assert parts.layers_done == 3


def test_a_gate_that_is_opened_stands_in_the_ticket_and_is_told(rig: Rig) -> None:
    ticket = rig.submit(Direction.LOAD, 17)
    rig.gate.let_through(1)
    until_ended(ticket)
    assert ticket.gate is rig.gate
    wait_until(lambda: rig.done == 2, what="gate and end are told")


def test_the_thread_survives_a_copy_that_fails(rig: Rig) -> None:
    unlucky, next_one = rig.submit(Direction.LOAD, 13), rig.submit(Direction.LOAD, 12)
    rig.gate.let_through(2)
    until_ended(unlucky, next_one)
    assert unlucky.error == "OSError: 13 is unlucky"
    assert next_one.state is TicketState.DONE
    assert next_one.seconds > 0


def test_the_thread_survives_a_listener_that_fails() -> None:
    def fail() -> None:
        raise RuntimeError("not listening")

    gate = Gate()
    gate.let_through(2)
    thread = CopyThread(gate, Pace(), fail)
    until_ended(thread.submit(copy(Direction.LOAD, 1)))
    until_ended(thread.submit(copy(Direction.LOAD, 1)))
    assert thread.close(timeout_s=10)


def test_a_copy_under_way_that_is_cancelled_stops_after_its_unit(rig: Rig) -> None:
    mirror = rig.submit(Direction.MIRROR, 100)
    assert rig.gate.waiting.wait(10)
    mirror.cancel()
    rig.gate.let_through(10)
    until_ended(mirror)
    assert mirror.error == "cancelled"
    assert rig.gate.moved == [(Direction.MIRROR, 20)]


def test_a_close_that_runs_out_of_time_leaves_the_copy_under_way_pending(rig: Rig) -> None:
    stuck, waiting = rig.submit(Direction.LOAD, 10), rig.submit(Direction.LOAD, 10)
    assert rig.gate.waiting.wait(10)
    assert not rig.thread.close(timeout_s=0.01)
    assert stuck.pending
    rig.gate.let_through(1)
    assert rig.thread.close(timeout_s=10)
    assert (stuck.state, waiting.error) == (TicketState.DONE, "the transfer is closed")
    assert rig.done == 2


@pytest.mark.parametrize("duty", [0.1, 0.5, 1.0])
def test_after_a_mirror_the_thread_rests_in_proportion_and_after_a_load_not_at_all(duty: float) -> None:
    pace = Pace(mirror_duty=duty)
    rest_s = pace.rest_s(Direction.MIRROR, 0.3)
    assert 0.3 / (0.3 + rest_s) == pytest.approx(duty)
    assert pace.rest_s(Direction.LOAD, 0.3) == 0.0


@pytest.mark.parametrize(
    ("field", "value"), [("mirror_unit_tokens", 0), ("load_unit_tokens", 0), ("mirror_duty", 0.0), ("mirror_duty", 1.1)]
)
def test_a_pace_that_makes_no_sense_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be"):
        Pace(**{field: value})  # type: ignore[arg-type]


def test_pools_of_different_layers_or_types_are_not_copied_between() -> None:
    device_pool = DevicePool(LAYERS, 4, torch.bfloat16, "cpu")
    for layers, dtype in ((LAYERS[:1], torch.bfloat16), (LAYERS, torch.float16)):
        with pytest.raises(ValueError, match="the same layers and dtype"):
            PoolCopier(device_pool, HostPool(layers, 4, dtype, pin="never"))


def test_what_a_stream_queues_layer_by_layer_is_what_the_thread_copies() -> None:
    device_pool = DevicePool(LAYERS, 20, torch.bfloat16, "cpu")
    for group in device_pool.planes.groups:
        group.normal_()
    by_layer, at_once = (HostPool(LAYERS, 30, torch.bfloat16, pin="never") for _ in range(2))
    device_slots = np.array([3, 4, 5, 6, 19, 0, 1, 9], dtype=np.int32)
    host_slots = np.array([9, 10, 11, 12, 13, 14, 15, 0], dtype=np.int32)
    for layer in range(len(LAYERS)):
        for source, target in layer_pieces(
            device_pool.planes, by_layer.planes, layer, runs_between(device_slots, host_slots)
        ):
            target.copy_(source)
    PoolCopier(device_pool, at_once)(Copy(Direction.MIRROR, device_slots, host_slots))
    everything = np.arange(30, dtype=np.int32)
    assert by_layer.read_page(everything) == at_once.read_page(everything)
    assert at_once.read_page(host_slots) == device_pool.read_page(device_slots)
