"""Copies between pools in main memory: what one copy does, and the thread that does them. Knows no tree."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Protocol

from hicache.copies.streams import Event
from hicache.copies.transfer import CLOSED, Copy, Direction, LayerGate, Ticket
from hicache.tiers.device import DevicePool
from hicache.tiers.host import HostPool
from hicache.tiers.planes import copy_slots
from hicache.tiers.runs import check_slots

_log: Final = logging.getLogger(__name__)


class Progress(Protocol):
    """Who is told how far a copy is."""

    def advance(self, layers_done: int) -> None:
        """So many layers are complete; told as often as it is known."""
        ...

    def open(self, gate: LayerGate) -> None:
        """From now on a reader can wait for one layer after the other."""
        ...


class Mover(Protocol):
    """What moves content for a `CopyThread`."""

    @property
    def num_layers(self) -> int: ...

    def fence(self) -> Event | None:
        """Called by `submit` on the owner's thread: what must have happened before the copy may touch its slots."""
        ...

    def move(self, copy: Copy, after: Event | None, progress: Progress) -> None:
        """Called on the copying thread. When it returns or raises, nothing touches the copy's slots any more."""
        ...


class PoolCopier:
    """Moves what lies in the slots of a copy, at once and on the calling thread. Both pools lie in main memory.

    All layers of a run are moved together, which is fastest: they are complete together, too, and no gate is opened.
    """

    def __init__(self, device_pool: DevicePool, host_pool: HostPool) -> None:
        check_pools(device_pool, host_pool)
        self.num_layers: Final = len(device_pool.layers)
        self._device_slots, self._host_slots = device_pool.num_slots, host_pool.num_slots
        self._device = device_pool.planes.slot_arrays()
        self._host = host_pool.planes.slot_arrays()

    def __call__(self, copy: Copy) -> None:
        """Raises IndexError, and copies nothing, for slots that there are not."""
        check_slots(copy.device_slots, self._device_slots, "device")
        check_slots(copy.host_slots, self._host_slots, "host")
        if copy.direction is Direction.MIRROR:
            copy_slots(self._device, self._host, copy.device_slots, copy.host_slots)
        else:
            copy_slots(self._host, self._device, copy.host_slots, copy.device_slots)

    def fence(self) -> None:
        """On the CPU, a forward pass is over when it returns."""

    def move(self, copy: Copy, after: Event | None, progress: Progress) -> None:
        assert after is None
        self(copy)
        progress.advance(self.num_layers)


def check_pools(device_pool: DevicePool, host_pool: HostPool) -> None:
    """Raise ValueError unless slots of one pool fit into the other."""
    if device_pool.layout() != host_pool.layout():
        raise ValueError("device pool and host pool must have the same layers and dtype")


@dataclass(frozen=True, slots=True)
class Pace:
    """How hard the thread works, in which portions. Loads are copied flat out: somebody waits for them."""

    # A load waits for no more than one portion of a mirror, and so long a forward pass may lack a core in one piece.
    mirror_unit_tokens: int = 256
    # Between two of these a load can be cancelled or closed.
    load_unit_tokens: int = 1_024
    # Share of its time the thread may spend on mirrors; the rest of it, it sleeps. A decode that uses all cores loses
    # somewhat more than this share (`benchmarks.copies`).
    mirror_duty: float = 0.05

    def __post_init__(self) -> None:
        for field in ("mirror_unit_tokens", "load_unit_tokens"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        if not 0 < self.mirror_duty <= 1:
            raise ValueError(f"mirror_duty must be above 0 and at most 1, got {self.mirror_duty}")

    def unit_tokens(self, direction: Direction) -> int:
        return self.load_unit_tokens if direction is Direction.LOAD else self.mirror_unit_tokens

    def rest_s(self, direction: Direction, worked_s: float) -> float:
        """Return how long no mirror is worked on after so much work."""
        return worked_s * (1 / self.mirror_duty - 1) if direction is Direction.MIRROR else 0.0


class CopyThread:
    """A transfer that copies on one thread of its own, in units; between any two of them it looks who is next."""

    def __init__(self, mover: Mover, pace: Pace, on_done: Callable[[], None]) -> None:
        """`on_done` is called on any thread after each ticket's end, and when a gate was opened."""
        self._mover = mover
        self._pace = pace
        self._on_done = on_done
        self._changed = threading.Condition()  # guards the next three
        self._closing = False
        self._loads: deque[_Job] = deque()
        self._mirrors: deque[_Job] = deque()
        self._rests_until = 0.0  # by perf_counter; only the thread uses it
        self._thread = threading.Thread(target=self._run, name="radixgate-copies", daemon=True)
        self._thread.start()

    def submit(self, copy: Copy) -> Ticket:
        ticket = Ticket(copy)
        job = _Job(ticket, self._mover.fence())
        with self._changed:
            accepted = not self._closing
            if accepted:
                self._queue_of(ticket).append(job)
                self._changed.notify()
        if not accepted:
            ticket.fail(CLOSED)
            self._tell()
        return ticket

    def close(self, timeout_s: float) -> bool:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._copy_unit(job)
            except Exception as error:  # noqa: BLE001 - the copies behind this one want to be served, too
                _log.exception("a copy between device and host failed")
                job.ticket.fail(f"{type(error).__name__}: {error}")
            if not job.ticket.pending:
                self._remove(job)
        for job in (*self._loads, *self._mirrors):  # nothing is added any more
            job.ticket.fail(CLOSED)
            self._tell()

    def _next(self) -> "_Job | None":
        """Wait for something to do: any load, or a mirror once the rest after the last one is over. None: closing."""
        with self._changed:
            while not self._closing:
                rest_s = self._rests_until - perf_counter()
                if self._loads:
                    return self._loads[0]
                if self._mirrors and rest_s <= 0:
                    return self._mirrors[0]
                self._changed.wait(rest_s if self._mirrors else None)
            return None

    def _copy_unit(self, job: "_Job") -> None:
        ticket = job.ticket
        if not ticket.begin():
            return
        direction = ticket.copy.direction
        started = perf_counter()
        job.move_unit(self._mover, self._pace.unit_tokens(direction), self._tell)
        ended = perf_counter()
        job.worked_s += ended - started
        self._rests_until = max(self._rests_until, ended + self._pace.rest_s(direction, ended - started))
        if job.tokens_done == len(ticket.copy):
            ticket.advance(self._mover.num_layers)
            ticket.finish(job.worked_s)

    def _remove(self, job: "_Job") -> None:
        with self._changed:
            self._queue_of(job.ticket).remove(job)  # it is the first one
        self._tell()

    def _queue_of(self, ticket: Ticket) -> "deque[_Job]":
        return self._loads if ticket.copy.direction is Direction.LOAD else self._mirrors

    def _tell(self) -> None:
        try:
            self._on_done()
        except Exception:  # noqa: BLE001 - not this thread's fault, and not its end
            _log.exception("on_done of the copies failed")


class ThreadTransfer(CopyThread):
    """Copies between pools in main memory, on one thread."""

    def __init__(
        self,
        device_pool: DevicePool,
        host_pool: HostPool,
        *,
        on_done: Callable[[], None],
        pace: Pace | None = None,
    ) -> None:
        """`on_done` is called on any thread after each ticket's end."""
        super().__init__(PoolCopier(device_pool, host_pool), pace or Pace(), on_done)


class _Job:
    """How far the thread is with a copy."""

    __slots__ = ("_after", "ticket", "tokens_done", "worked_s")

    def __init__(self, ticket: Ticket, after: Event | None) -> None:
        self.ticket = ticket
        self._after = after
        self.tokens_done = 0
        self.worked_s = 0.0

    def move_unit(self, mover: Mover, max_tokens: int, tell: Callable[[], None]) -> None:
        """Move the next so many tokens. Layers are told only where one unit is all."""
        whole = self.ticket.copy
        start, end = self.tokens_done, min(len(whole), self.tokens_done + max_tokens)
        if end - start == len(whole):
            mover.move(whole, self._after, _ToldProgress(self.ticket, tell))
        else:
            unit = Copy(whole.direction, whole.device_slots[start:end], whole.host_slots[start:end])
            mover.move(unit, self._after, _PartProgress())
        self.tokens_done = end


class _ToldProgress:
    """Goes into the ticket. That a gate is open somebody may wait for."""

    def __init__(self, ticket: Ticket, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._ticket = ticket

    def advance(self, layers_done: int) -> None:
        self._ticket.advance(layers_done)

    def open(self, gate: LayerGate) -> None:
        self._ticket.open(gate)
        self._tell()


class _PartProgress:
    """Layers of a part are not layers of the whole."""

    def advance(self, layers_done: int) -> None: ...

    def open(self, gate: LayerGate) -> None: ...
