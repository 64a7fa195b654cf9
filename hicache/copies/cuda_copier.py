"""Copies between a CUDA device and main memory, on a stream of their own beside the forward pass.

Not run on hardware yet. Queues, units, errors and the end are those of `CopyThread`, runs those of `tiers.runs`; new is
only what stands here. One call for each plane and run: long runs are cheap, many short ones cost the thread some
microseconds each.
"""

from collections.abc import Callable, Sequence
from typing import Final

import torch

from hicache.copies.copier import CopyThread, Pace, check_pools
from hicache.copies.transfer import Copy, Direction
from hicache.tiers.device import DevicePool
from hicache.tiers.host import HostPool
from hicache.tiers.planes import Planes
from hicache.tiers.runs import Run, check_slots, runs_between

# The copy engines take nothing from the compute cores, so mirrors need no rest. A load is one unit: its layers become
# complete one after the other, ahead of the forward pass that waits for them.
_PACE: Final = Pace(mirror_unit_tokens=4_096, load_unit_tokens=1 << 31, mirror_duty=1.0)


class CudaTransfer(CopyThread):
    """Copies between a pool on a CUDA device and a host pool, which should be pinned: pageable memory copies slower."""

    def __init__(self, device_pool: DevicePool, host_pool: HostPool, *, on_done: Callable[[], None]) -> None:
        """`on_done` is called on any thread after each ticket's end."""
        super().__init__(CudaMover(device_pool, host_pool), _PACE, on_done)


class CudaMover:
    """Queues a copy layer by layer on the side stream and waits there for the events behind each layer."""

    def __init__(self, device_pool: DevicePool, host_pool: HostPool) -> None:
        check_pools(device_pool, host_pool)
        self.num_layers: Final = len(device_pool.layers)
        self._device = device_pool.planes
        self._host = host_pool.planes
        self._stream = torch.cuda.Stream(device_pool.device)  # type: ignore[no-untyped-call]

    def fence(self) -> torch.cuda.Event:
        """What the owner's stream has queued: it may still write what a mirror reads, or read what a load replaces."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device.device))
        return event

    def move(self, copy: Copy, after: torch.cuda.Event | None, advance: Callable[[int], None]) -> None:
        check_slots(copy.device_slots, self._device.num_slots, "device")
        check_slots(copy.host_slots, self._host.num_slots, "host")
        try:
            events = self._queue(copy, after)
            for layers_done, event in enumerate(events, start=1):
                event.synchronize()
                advance(layers_done)
        finally:
            # Whatever went wrong: what was queued before must not touch the slots after the ticket has failed.
            self._stream.synchronize()

    def _queue(self, copy: Copy, after: torch.cuda.Event | None) -> list[torch.cuda.Event]:
        """Queue all of it; return an event for each layer."""
        if copy.direction is Direction.MIRROR:
            source, target = self._device, self._host
            runs = runs_between(copy.device_slots, copy.host_slots)
        else:
            source, target = self._host, self._device
            runs = runs_between(copy.host_slots, copy.device_slots)
        events = []
        with torch.cuda.stream(self._stream):
            if after is not None:
                self._stream.wait_event(after)
            for layer in range(self.num_layers):
                copy_layer(source, target, layer, runs)
                # Blocking: waiting for it sleeps, and leaves the core to others.
                event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                event.record(self._stream)
                events.append(event)
        return events


def copy_layer(source: Planes, target: Planes, layer: int, runs: Sequence[Run]) -> None:
    """Copy K and V of one layer, run by run: contiguous pieces on both sides, queued and not waited for."""
    for place in (source.layout.key(layer), source.layout.value(layer)):
        from_plane, to_plane = source.tensor(place), target.tensor(place)
        for run in runs:
            piece = from_plane[run.source : run.source + run.num_slots]
            to_plane[run.target : run.target + run.num_slots].copy_(piece, non_blocking=True)
