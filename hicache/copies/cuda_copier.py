"""Copies between a CUDA device and main memory, on a stream of their own beside the forward pass.

Not run on hardware yet. Queues, units, errors and the end are those of `CopyThread`, runs those of `tiers.runs`; new is
only what stands here. One call for each plane and run: long runs are cheap, many short ones cost the thread some
microseconds each.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from torch import Tensor

from hicache.copies.copier import CopyThread, Pace, Progress, check_pools
from hicache.copies.streams import CudaStreams, Event, Streams
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
        """`on_done` is called on any thread after each ticket's end, and when the gate of a load was opened."""
        super().__init__(StreamMover(device_pool, host_pool, CudaStreams(device_pool.device)), _PACE, on_done)


class StreamMover:
    """Queues a copy layer by layer on the side stream and waits there for the events behind each layer.

        caller's stream  …step n │fence           │wait 0  layer 0 of step n+1 │wait 1  layer 1 …
        side stream              │wait fence  copy layer 0 │event 0  copy layer 1 │event 1 …

    A reader waits on its own stream (`EventGate`): its thread goes on, and the device follows the copy by one layer.
    """

    def __init__(self, device_pool: DevicePool, host_pool: HostPool, streams: Streams) -> None:
        check_pools(device_pool, host_pool)
        self.num_layers: Final = len(device_pool.layers)
        self._device = device_pool.planes
        self._host = host_pool.planes
        self._streams = streams

    def fence(self) -> Event:
        """What the owner's stream has queued: it may still write what a mirror reads, or read what a load replaces."""
        return self._streams.current().record()

    def move(self, copy: Copy, after: Event | None, progress: Progress) -> None:
        check_slots(copy.device_slots, self._device.num_slots, "device")
        check_slots(copy.host_slots, self._host.num_slots, "host")
        try:
            events = self.queue(copy, after)
            if copy.direction is Direction.LOAD:
                # Not before all is queued: an event that is yet to be recorded would hold nobody back.
                progress.open(EventGate(self._streams, events))
            for layers_done, event in enumerate(events, start=1):
                event.synchronize()
                progress.advance(layers_done)
        finally:
            # Whatever went wrong: what was queued before must not touch the slots after the ticket has failed.
            self._streams.side.synchronize()

    def queue(self, copy: Copy, after: Event | None) -> Sequence[Event]:
        """Queue all of it; return an event for each layer."""
        if copy.direction is Direction.MIRROR:
            source, target = self._device, self._host
            runs = runs_between(copy.device_slots, copy.host_slots)
        else:
            source, target = self._host, self._device
            runs = runs_between(copy.host_slots, copy.device_slots)
        side = self._streams.side
        if after is not None:
            side.wait(after)
        events = []
        for layer in range(self.num_layers):
            side.copy(layer_pieces(source, target, layer, runs))
            events.append(side.record())
        return events


class EventGate:
    """Lets the stream on which the caller computes wait for one layer's event, and never the caller."""

    def __init__(self, streams: Streams, events: Sequence[Event]) -> None:
        self._streams = streams
        self._events = events

    def wait(self, layer: int) -> None:
        self._streams.current().wait(self._events[layer])


def layer_pieces(source: Planes, target: Planes, layer: int, runs: Sequence[Run]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield K and V of one layer, run by run: contiguous pieces of both sides."""
    for place in (source.layout.key(layer), source.layout.value(layer)):
        from_plane, to_plane = source.tensor(place), target.tensor(place)
        for run in runs:
            yield (
                from_plane[run.source : run.source + run.num_slots],
                to_plane[run.target : run.target + run.num_slots],
            )
