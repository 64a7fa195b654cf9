"""Copies beside forward passes on streams: in no order of events is a slot read too early or reused too early.

And the test can fail: with any one of the rules broken, some order shows it.
"""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hicache.copies.cuda_copier import EventGate, StreamMover, layer_pieces
from hicache.copies.streams import Event
from hicache.copies.transfer import Copy, Direction, LayerGate
from hicache.tiers.runs import runs_between
from tests.fakes.streams import FakeDevice, FakeEvent
from tests.property.stream_world import NUM_LAYERS, Flight, Misread, World, compare, write

torch.set_num_threads(1)
TURNS = 100


def go_through(world: World) -> None:
    for _ in range(TURNS):
        world.turn()
    world.finish()


@given(st.integers(0, 2**64 - 1))
def test_every_read_finds_what_the_books_say(seed: int) -> None:
    world = World(random.Random(seed))
    go_through(world)


def test_courses_read_through_gates_and_use_slots_again() -> None:
    worlds = [World(random.Random(seed)) for seed in range(30)]
    for world in worlds:
        go_through(world)
    assert sum(world.num_followed for world in worlds) > 30
    assert sum(world.num_contents for world in worlds) > 2 * 30 * 3


class NoFence(StreamMover):
    def queue(self, copy: Copy, after: Event | None) -> Sequence[Event]:
        return super().queue(copy, None)


class EventsBeforeCopies(StreamMover):
    def queue(self, copy: Copy, after: Event | None) -> Sequence[Event]:
        side = self._streams.side
        assert after is not None
        side.wait(after)
        sides = [(self._device, copy.device_slots), (self._host, copy.host_slots)]
        (source, first), (target, second) = sides if copy.direction is Direction.MIRROR else sides[::-1]
        events = []
        for layer in range(NUM_LAYERS):
            events.append(side.record())
            side.copy(layer_pieces(source, target, layer, runs_between(first, second)))
        return events


class WithoutFence(World):
    def make_mover(self) -> StreamMover:
        return NoFence(self.on_device, self.on_host, self.device)


class WithEarlyEvents(World):
    def make_mover(self) -> StreamMover:
        return EventsBeforeCopies(self.on_device, self.on_host, self.device)


class WithGateOfTheLayerBefore(World):
    def gate(self, events: object) -> LayerGate:
        assert isinstance(events, list)
        return EventGate(self.device, [events[0], *events])


class OpenGate:
    def wait(self, layer: int) -> None: ...


class WithoutGate(World):
    """As if the gate had been opened before the copy was queued."""

    def gate(self, events: object) -> LayerGate:
        return OpenGate()


class FreesUnderMirrors(World):
    def held(self) -> set[int]:
        loads = [flight.copy for flight in self.flights if flight.copy.direction is Direction.LOAD]
        return {slot for copy in loads for slot in copy.device_slots.tolist()}


class EndsWhenQueued(World):
    def has_ended(self, flight: Flight) -> bool:
        return flight.end is not None


BROKEN = [
    WithoutFence, WithEarlyEvents, WithGateOfTheLayerBefore, WithoutGate, FreesUnderMirrors, EndsWhenQueued,
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_rule_is_found(broken: type[World]) -> None:
    for seed in range(200):
        if fault_of(broken(random.Random(seed))) is not None:
            return
    pytest.fail("200 courses went well")


def fault_of(world: World) -> Misread | None:
    try:
        go_through(world)
    except Misread as fault:
        return fault
    return None


class Notes:
    """What a mover tells, and how far the target is at that time."""

    def __init__(self, world: World, contents: dict[int, int], direction: Direction) -> None:
        self.told: list[object] = []
        self._planes = (world.on_host if direction is Direction.MIRROR else world.on_device).planes
        self._contents = contents

    def advance(self, layers_done: int) -> None:
        self.told.append(layers_done)
        for layer in range(layers_done):
            for slot, content in self._contents.items():
                compare(self._planes, layer, slot, content)

    def open(self, gate: LayerGate) -> None:
        self.told.append("open")
        for layer in range(NUM_LAYERS):
            gate.wait(layer)


@pytest.mark.parametrize(("direction", "opened"), [(Direction.LOAD, ["open"]), (Direction.MIRROR, [])])
def test_a_mover_opens_the_gate_of_a_load_and_then_tells_layer_by_layer(
    direction: Direction, opened: list[object]
) -> None:
    for seed in range(20):
        world = World(random.Random(seed))
        sources, targets = (4, 1, 2), (0, 1, 5)
        source = (world.on_device if direction is Direction.MIRROR else world.on_host).planes
        for slot in sources:
            for layer in range(NUM_LAYERS):
                write(source, layer, slot, slot + 1)
        slots = [np.array(each, np.int32) for each in (sources, targets)]
        device_slots, host_slots = slots if direction is Direction.MIRROR else slots[::-1]
        contents = {target: slot + 1 for slot, target in zip(sources, targets, strict=True)}
        notes = Notes(world, contents, direction)
        world.mover.move(Copy(direction, device_slots, host_slots), world.mover.fence(), notes)
        assert notes.told == [*opened, *range(1, NUM_LAYERS + 1)]


def test_when_a_move_goes_wrong_nothing_of_it_is_left_on_the_stream() -> None:
    world = World(random.Random(0))
    slots = np.arange(3, dtype=np.int32)

    def break_down() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    world.device.side.run(break_down)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        world.mover.move(Copy(Direction.LOAD, slots, slots), None, Notes(world, {}, Direction.LOAD))
    assert world.device.side.pending == 0


def test_slots_that_there_are_not_are_refused_before_anything_is_queued() -> None:
    world = World(random.Random(0))
    slots = np.array([0, 99], dtype=np.int32)
    with pytest.raises(IndexError, match="device slots must be in"):
        world.mover.move(Copy(Direction.LOAD, slots, slots), None, Notes(world, {}, Direction.LOAD))
    assert world.device.side.pending == 0


def test_an_event_holds_nobody_back_for_what_is_queued_behind_it() -> None:
    device = FakeDevice(lambda _: 0)
    event = device.main.record()
    device.main.run(lambda: pytest.fail("nobody waits for this"))
    device.side.wait(event)
    assert device.side.ready


def test_streams_that_wait_for_each_other_are_noticed() -> None:
    device = FakeDevice(lambda _: 0)
    device.main.wait(FakeEvent(device.side, 1))
    device.side.wait(FakeEvent(device.main, 1))
    with pytest.raises(AssertionError, match="wait for each other"):
        device.drain()
