"""Copies on real streams: what a fence holds back, what a gate lets through, and memory that is really pinned.

The transfers' contract on CUDA is in `tests/contract/test_transfers.py`, case `cuda`.
"""

import gc
from collections.abc import Iterator
from time import perf_counter

import numpy as np
import pytest
import torch

from hicache.copies.copier import CopyThread, Pace
from hicache.copies.cuda_copier import StreamMover
from hicache.copies.fake_transfer import ignore_done
from hicache.copies.streams import CudaStreams
from hicache.copies.transfer import Copy, Direction, TicketState
from hicache.tiers.device import DevicePool, LayerShape
from hicache.tiers.host import HostPool
from tests.gpu.device import CUDA, ON_CUDA
from tests.processes import wait_until
from worker.model.layer_gate import AllGates

pytestmark = ON_CUDA

LAYERS = [LayerShape(4, 64, 64)] * 8
NUM_SLOTS = 2_048
LONG = 400_000_000  # cycles of the device: a fifth of a second or more


class Rig:
    def __init__(self) -> None:
        self.device_pool = DevicePool(LAYERS, NUM_SLOTS, torch.bfloat16, CUDA)
        self.host_pool = HostPool(LAYERS, NUM_SLOTS, torch.bfloat16, pin="require")
        for group in (*self.device_pool.planes.groups, *self.host_pool.planes.groups):
            group.normal_()
        torch.cuda.synchronize(CUDA)
        streams = CudaStreams(CUDA)
        self.side = streams.side._stream
        self.transfer = CopyThread(
            StreamMover(self.device_pool, self.host_pool, streams), Pace(load_unit_tokens=1 << 31), ignore_done
        )

    def hold_up(self, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG)  # type: ignore[no-untyped-call]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    assert made.transfer.close(timeout_s=30)


def copy(direction: Direction, num_tokens: int) -> Copy:
    return Copy(direction, np.arange(num_tokens, dtype=np.int32), np.arange(num_tokens, dtype=np.int32)[::-1].copy())


def test_a_forward_pass_follows_a_load_through_its_gate_and_its_thread_never_waits(rig: Rig) -> None:
    load = copy(Direction.LOAD, NUM_SLOTS)
    rig.hold_up(rig.side)
    ticket = rig.transfer.submit(load)
    wait_until(lambda: ticket.gate is not None, what="the gate is opened")
    assert ticket.gate is not None
    gate = AllGates([ticket.gate])
    start = perf_counter()
    found = []
    for layer in range(len(LAYERS)):
        gate.wait(layer)
        found.append((rig.device_pool.key(layer).clone(), rig.device_pool.value(layer).clone()))
    queued_s = perf_counter() - start
    assert ticket.pending, "the load ended before anything could be shown"
    assert queued_s < 0.1
    wait_until(lambda: not ticket.pending, what="the load ends")
    assert ticket.state is TicketState.DONE
    planes = rig.host_pool.planes
    for layer, (key, value) in enumerate(found):
        assert torch.equal(key.cpu(), planes.tensor(planes.layout.key(layer)).flip(0))
        assert torch.equal(value.cpu(), planes.tensor(planes.layout.value(layer)).flip(0))


def test_a_mirror_comes_after_what_the_owner_has_queued(rig: Rig) -> None:
    mirror = copy(Direction.MIRROR, 100)
    rig.hold_up(torch.cuda.current_stream(CUDA))
    rig.device_pool.key(3)[:100] = 7.0
    ticket = rig.transfer.submit(mirror)
    wait_until(lambda: not ticket.pending, what="the mirror ends")
    assert ticket.state is TicketState.DONE
    planes = rig.host_pool.planes
    assert (planes.tensor(planes.layout.key(3))[:100] == 7.0).all()


def test_a_load_comes_after_what_the_owner_reads_from_its_slots(rig: Rig) -> None:
    before = rig.device_pool.value(5).clone()
    torch.cuda.synchronize(CUDA)
    rig.hold_up(torch.cuda.current_stream(CUDA))
    seen = rig.device_pool.value(5).clone()
    ticket = rig.transfer.submit(copy(Direction.LOAD, NUM_SLOTS))
    wait_until(lambda: not ticket.pending, what="the load ends")
    assert torch.equal(seen, before)
    assert not torch.equal(rig.device_pool.value(5), before)


def test_the_host_pool_is_pinned_where_it_lies_and_can_be_had_again() -> None:
    for _ in range(2):
        pool = HostPool(LAYERS, NUM_SLOTS, torch.bfloat16, pin="require")
        assert pool.pinned
        assert all(group.is_pinned() for group in pool.planes.groups)
        del pool
        gc.collect()
    torch.ones(1, device=CUDA).cpu()  # no error was left behind


def test_memory_that_cannot_be_pinned_is_taken_as_it_is_and_the_reason_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda.cudart(), "cudaHostRegister", lambda *_: 712)  # type: ignore[no-untyped-call]
    pool = HostPool(LAYERS, 16, torch.bfloat16, pin="auto")
    assert "CUDA error 712" in pool.unpinned_reason
    torch.ones(1, device=CUDA).cpu()
