"""A device of the imagination: streams are queues of work, done in any order that streams and events allow.

Who chooses the order decides what is found: `choose(n)` returns one of 0..n-1. Nothing is done before somebody lets the
device go on (`advance`), or waits for it, as `synchronize` does. Like CUDA's, an event holds nobody back but behind
what was queued before it was recorded.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from torch import Tensor

from hicache.copies.streams import Event

Choose = Callable[[int], int]


class FakeDevice:
    """Implements `hicache.copies.streams.Streams`."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self.main: Final = FakeStream(self)
        self.side: Final = FakeStream(self)

    def current(self) -> "FakeStream":
        return self.main

    def advance(self) -> bool:
        """Do the next thing of some stream. False: there is nothing that may be done."""
        ready = [stream for stream in (self.main, self.side) if stream.ready]
        if ready:
            ready[self._choose(len(ready))].do_next()
        return bool(ready)

    def drain(self) -> None:
        while self.advance():
            pass
        assert self.idle, "streams wait for each other"

    @property
    def idle(self) -> bool:
        return not (self.main.pending or self.side.pending)


class FakeStream:
    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.num_done = 0
        self._work: deque[Callable[[], None] | FakeEvent] = deque()

    @property
    def pending(self) -> int:
        return len(self._work)

    @property
    def ready(self) -> bool:
        """Whether there is something, and no event is in the way."""
        return bool(self._work) and not (isinstance(self._work[0], FakeEvent) and not self._work[0].reached)

    def run(self, work: Callable[[], None]) -> None:
        """Queue anything, a layer's attention for example."""
        self._work.append(work)

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        for source, target in pairs:
            assert source.shape == target.shape
            assert source.is_contiguous()
            assert target.is_contiguous()
            self.run(partial(_copy, source, target))

    def record(self) -> "FakeEvent":
        return FakeEvent(self, self.num_done + len(self._work))

    def wait(self, event: Event) -> None:
        assert isinstance(event, FakeEvent)
        self._work.append(event)

    def synchronize(self) -> None:
        self.record().synchronize()

    def do_next(self) -> None:
        work = self._work.popleft()
        self.num_done += 1
        if not isinstance(work, FakeEvent):
            work()


class FakeEvent:
    def __init__(self, stream: FakeStream, behind: int) -> None:
        self._stream = stream
        self._behind = behind

    @property
    def reached(self) -> bool:
        return self._stream.num_done >= self._behind

    def synchronize(self) -> None:
        while not self.reached:
            assert self._stream.device.advance(), "nobody will ever reach this event"


def _copy(source: Tensor, target: Tensor) -> None:
    target.copy_(source)
