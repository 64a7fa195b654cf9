"""An owner of slots, a copying thread and a device that take turns at random, with the real mover between the pools.

The owner's books run ahead of the device, further than an engine's do that waits for each step: what a forward pass
was told to write counts as cached at once. So nothing but streams, events and the rule of slots keeps the order:

    a slot that a copy reads or writes is given to nobody until the copy has ended
    what a load brings is read when it has ended, or through its gate, layer by layer

Contents are numbers. Each read on the device, and each mirror that has ended, is compared with what the books say.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hicache.copies.cuda_copier import EventGate, StreamMover
from hicache.copies.streams import Event
from hicache.copies.transfer import Copy, Direction, LayerGate
from hicache.tiers.device import DevicePool, LayerShape
from hicache.tiers.host import HostPool
from hicache.tiers.planes import Planes
from tests.fakes.streams import FakeDevice, FakeEvent
from worker.model.layer_gate import AllGates

NUM_LAYERS, NUM_SLOTS, WIDEST = 3, 6, 3
LAYERS = [LayerShape(1, 2, 1)] * NUM_LAYERS


class Misread(AssertionError):
    """A slot holds something else than it should."""


@dataclass(eq=False)
class Flight:
    copy: Copy
    contents: list[int]  # token by token
    after: Event | None
    gate: LayerGate | None = None
    end: FakeEvent | None = None  # None: not queued yet


class World:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.device = FakeDevice(rng.randrange)
        self.on_device = DevicePool(LAYERS, NUM_SLOTS, torch.float32, "cpu")
        self.on_host = HostPool(LAYERS, NUM_SLOTS, torch.float32, pin="never")
        self.mover = self.make_mover()
        self.cached: dict[int, int] = {}  # device slot → content
        self.hosted: dict[int, int] = {}  # host slot → content, of mirrors that have ended
        self.flights: list[Flight] = []
        self.num_contents = 0
        self.num_followed = 0  # reads through a gate
        for slot in range(NUM_SLOTS // 2):
            self.hosted[slot] = self.new_content()
            for layer in range(NUM_LAYERS):
                write(self.on_host.planes, layer, slot, self.hosted[slot])

    def make_mover(self) -> StreamMover:
        return StreamMover(self.on_device, self.on_host, self.device)

    def new_content(self) -> int:
        self.num_contents += 1
        return self.num_contents

    # Who may touch what

    def held(self) -> set[int]:
        """Device slots of copies under way."""
        return {slot for flight in self.flights for slot in flight.copy.device_slots.tolist()}

    def held_on_host(self) -> set[int]:
        return {slot for flight in self.flights for slot in flight.copy.host_slots.tolist()}

    def readable(self) -> tuple[dict[int, int], list[LayerGate]]:
        """What a forward pass may read now, and the gates of loads that have not ended."""
        contents, gates = dict(self.cached), []
        for flight in self.flights:
            if flight.gate is not None:
                contents |= zip(flight.copy.device_slots.tolist(), flight.contents, strict=True)
                gates.append(flight.gate)
        return contents, gates

    # What happens

    def turn(self) -> None:
        actions: list[Callable[[], None]] = [
            self.compute, self.read, self.mirror, self.load, self.free, self.free_on_host, self.begin, self.poll,
            self.let_go_on, self.let_go_on,
        ]  # fmt: skip
        self.rng.choice(actions)()

    def finish(self) -> None:
        """Let everything end, and compare what is left."""
        while self.flights:
            self.begin()
            self.device.drain()
            self.poll()
        self.device.drain()
        self.read()
        self.device.drain()

    def compute(self) -> None:
        """A forward pass writes a new content into a free slot, layer by layer."""
        for slot in self.pick(set(range(NUM_SLOTS)) - self.cached.keys() - self.held(), 1):
            self.cached[slot] = self.new_content()
            for layer in range(NUM_LAYERS):
                self.device.main.run(partial(write, self.on_device.planes, layer, slot, self.cached[slot]))

    def read(self) -> None:
        """A forward pass reads all that it may."""
        contents, gates = self.readable()
        self.num_followed += bool(gates)
        gate = AllGates(gates)
        for layer in range(NUM_LAYERS):
            gate.wait(layer)
            for slot, content in contents.items():
                self.device.main.run(partial(compare, self.on_device.planes, layer, slot, content))

    def mirror(self) -> None:
        slots = self.pick(self.cached.keys() - self.held(), WIDEST)
        host_slots = self.pick(set(range(NUM_SLOTS)) - self.hosted.keys() - self.held_on_host(), len(slots))
        slots = slots[: len(host_slots)]
        self.submit(Direction.MIRROR, slots, host_slots, [self.cached[slot] for slot in slots])

    def load(self) -> None:
        host_slots = self.pick(self.hosted.keys() - self.held_on_host(), WIDEST)
        slots = self.pick(set(range(NUM_SLOTS)) - self.cached.keys() - self.held(), len(host_slots))
        host_slots = host_slots[: len(slots)]
        self.submit(Direction.LOAD, slots, host_slots, [self.hosted[slot] for slot in host_slots])

    def free(self) -> None:
        for slot in self.pick(self.cached.keys() - self.held(), 1):
            del self.cached[slot]

    def free_on_host(self) -> None:
        for slot in self.pick(self.hosted.keys() - self.held_on_host(), 1):
            del self.hosted[slot]
            # As another page from storage would.
            for layer in range(NUM_LAYERS):
                write(self.on_host.planes, layer, slot, -1)

    def begin(self) -> None:
        """The copying thread takes the next copy, loads first, and queues it."""
        waiting = [flight for flight in self.flights if flight.end is None]
        for flight in sorted(waiting, key=lambda flight: flight.copy.direction is not Direction.LOAD)[:1]:
            events = self.mover.queue(flight.copy, flight.after)
            if flight.copy.direction is Direction.LOAD:
                flight.gate = self.gate(events)
            assert isinstance(events[-1], FakeEvent)
            flight.end = events[-1]

    def gate(self, events: object) -> LayerGate:
        return EventGate(self.device, events)  # type: ignore[arg-type]

    def poll(self) -> None:
        """The owner takes note of what has ended."""
        for flight in [flight for flight in self.flights if self.has_ended(flight)]:
            self.flights.remove(flight)
            if flight.copy.direction is Direction.LOAD:
                self.cached |= zip(flight.copy.device_slots.tolist(), flight.contents, strict=True)
                continue
            for slot, content in zip(flight.copy.host_slots.tolist(), flight.contents, strict=True):
                self.hosted[slot] = content
                for layer in range(NUM_LAYERS):
                    compare(self.on_host.planes, layer, slot, content)

    def has_ended(self, flight: Flight) -> bool:
        return flight.end is not None and flight.end.reached

    def let_go_on(self) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            self.device.advance()

    def submit(self, direction: Direction, slots: list[int], host_slots: list[int], contents: list[int]) -> None:
        if slots:
            copy = Copy(direction, np.array(slots, np.int32), np.array(host_slots, np.int32))
            self.flights.append(Flight(copy, contents, self.mover.fence()))

    def pick(self, slots: set[int], most: int) -> list[int]:
        """Some of `slots`, at most so many; sometimes a run."""
        found = sorted(slots)
        if self.rng.random() < 0.5:
            self.rng.shuffle(found)
        return found[: self.rng.randint(0, most)]


def write(planes: Planes, layer: int, slot: int, content: int) -> None:
    planes.tensor(planes.layout.key(layer))[slot] = content * 10 + layer
    planes.tensor(planes.layout.value(layer))[slot] = -(content * 10 + layer)


def compare(planes: Planes, layer: int, slot: int, content: int) -> None:
    key = planes.tensor(planes.layout.key(layer))[slot].flatten().tolist()
    value = planes.tensor(planes.layout.value(layer))[slot].flatten().tolist()
    wanted = content * 10 + layer
    if (key, value) != ([wanted] * 2, [-wanted]):
        raise Misread(f"layer {layer} of slot {slot} should hold {wanted}, and holds {key}, {value}")
