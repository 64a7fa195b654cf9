"""Copies and fetches of simulated workers take as long as they are modelled to, and are not over before."""

import numpy as np
import pytest
import torch

from hicache.copies.copier import PoolCopier
from hicache.copies.transfer import Copy, Direction, LayerGate
from hicache.storage.memory import MemoryStore
from hicache.storage.store import PageName
from hicache.tiers.device import DevicePool, LayerShape
from hicache.tiers.host import HostPool
from worker.simulate.movement import TimedMover, TimedStore
from worker.simulate.pacing import Pacer

LAYERS = [LayerShape(1, 1, 1)]


class Sleeps:
    """Time that stands still but for sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def pacer(self) -> Pacer:
        return Pacer(lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Told:
    """Notes when layers are complete."""

    def __init__(self, time: Sleeps) -> None:
        self._time = time
        self.at: list[tuple[float, int]] = []

    def advance(self, layers_done: int) -> None:
        self.at.append((self._time.now, layers_done))

    def open(self, gate: LayerGate) -> None:
        raise AssertionError("a copy that takes its time opens nothing before")


def test_a_load_is_over_when_its_time_is_and_has_moved_what_it_should() -> None:
    device, host = DevicePool(LAYERS, 64, torch.int32, "cpu"), HostPool(LAYERS, 64, torch.int32, pin="never")
    for group in host.planes.groups:
        group.random_(0, 1000)
    time = Sleeps()
    told = Told(time)
    slots = np.arange(40, dtype=np.int32)
    mover = TimedMover(PoolCopier(device, host), tokens_per_s=100.0, pacer=time.pacer())
    mover.move(Copy(Direction.LOAD, slots, slots), mover.fence(), told)
    assert time.now == pytest.approx(0.4)
    assert told.at == [(time.now, 1)]
    assert device.read_page(slots) == host.read_page(slots)


def test_only_pages_that_are_found_take_time() -> None:
    time = Sleeps()
    store = TimedStore(MemoryStore(1 << 20), page_s=0.5, pacer=time.pacer())
    names = [PageName(b"g" * 16, bytes([number]) * 16) for number in range(3)]
    store.put([(names[0], b"one"), (names[2], b"three")])
    assert store.contains(names) == [True, False, True]
    assert time.now == 0.0
    assert store.get(names) == [b"one", None, b"three"]
    assert time.now == pytest.approx(1.0)
