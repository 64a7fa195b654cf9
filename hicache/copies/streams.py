"""What copies need of a device that works through queues of its own, and CUDA's streams as such queues.

What is queued on one stream is done in its order; streams know of each other by events only. An event that was never
recorded holds nobody back, so one comes to be by being recorded here.
"""

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """A point in a stream: reached when all that was queued there before it is done."""

    def synchronize(self) -> None:
        """Block the calling thread until it is reached. Raises what went wrong on the device."""
        ...


class Stream(Protocol):
    """A queue of work. Nothing here but `synchronize` blocks the caller."""

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Queue copies of (source, target), which have one shape and dtype and are contiguous."""
        ...

    def record(self) -> Event:
        """Return the point behind all that was queued so far."""
        ...

    def wait(self, event: Event) -> None:
        """Queue that nothing behind it begins before `event` is reached."""
        ...

    def synchronize(self) -> None:
        """Block the calling thread until all that was queued so far is done."""
        ...


class Streams(Protocol):
    """A device's streams: a side one for copies, and the one on which the calling thread computes."""

    @property
    def side(self) -> Stream: ...

    def current(self) -> Stream: ...


class CudaStreams:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.side = CudaStream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]

    def current(self) -> "CudaStream":
        return CudaStream(torch.cuda.current_stream(self._device))


class CudaStream:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        with torch.cuda.stream(self._stream):
            for source, target in pairs:
                target.copy_(source, non_blocking=True)

    def record(self) -> torch.cuda.Event:
        # Blocking: a thread that waits for it sleeps, and leaves the core to others.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, torch.cuda.Event)
        self._stream.wait_event(event)

    def synchronize(self) -> None:
        self._stream.synchronize()
