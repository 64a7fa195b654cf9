"""Copies between pools in main memory: what one copy does, and the thread that does them. Knows no tree."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from hicache.tiers.device import DevicePool
from hicache.tiers.host import HostPool
from hicache.tiers.planes import copy_slots
from hicache.tiers.runs import check_slots
from hicache.transfer import CLOSED, Copy, Direction, Ticket

_log: Final = logging.getLogger(__name__)


class PoolCopier:
    """Moves what lies in the slots of a copy, at once and on the calling thread. Both pools lie in main memory."""

    def __init__(self, device_pool: DevicePool, host_pool: HostPool) -> None:
        check_pools(device_pool, host_pool)
        self._num_slots = (device_pool.num_slots, host_pool.num_slots)
        self._device = device_pool.planes.slot_arrays()
        self._host = host_pool.planes.slot_arrays()

    def __call__(self, copy: Copy) -> None:
        """Raises IndexError, and copies nothing, for slots that there are not."""
        check_slots(copy.device_slots, self._num_slots[0], "device")
        check_slots(copy.host_slots, self._num_slots[1], "host")
        if copy.direction is Direction.MIRROR:
            copy_slots(self._device, self._host, copy.device_slots, copy.host_slots)
        else:
            copy_slots(self._host, self._device, copy.host_slots, copy.device_slots)


def check_pools(device_pool: DevicePool, host_pool: HostPool) -> None:
    """Raise ValueError unless slots of one pool fit into the other."""
    if device_pool.layout() != host_pool.layout():
        raise ValueError("device pool and host pool must have the same layers and dtype")


@dataclass(frozen=True, slots=True)
class Pace:
    """How hard the thread works. Loads are copied flat out: somebody waits for them."""

    # A load waits for at most so much of a mirror, and so long a forward pass lacks a core in one piece.
    unit_tokens: int = 256
    # Share of its time the thread may spend on mirrors; the rest of it, it sleeps.
    mirror_duty: float = 0.1

    def __post_init__(self) -> None:
        if self.unit_tokens < 1:
            raise ValueError(f"unit_tokens must be at least 1, got {self.unit_tokens}")
        if not 0 < self.mirror_duty <= 1:
            raise ValueError(f"mirror_duty must be above 0 and at most 1, got {self.mirror_duty}")

    def rest_s(self, worked_s: float) -> float:
        """Return how long to sleep after so much work on a mirror."""
        return worked_s * (1 / self.mirror_duty - 1)


class ThreadTransfer:
    """Copies on one thread of its own, in units; between any two of them it looks who is next.

    A copy moves all layers of a unit at once, which is fastest: layers are complete only when the ticket is done.
    """

    def __init__(
        self,
        device_pool: DevicePool,
        host_pool: HostPool,
        *,
        on_done: Callable[[], None],
        pace: Pace | None = None,
    ) -> None:
        """`on_done` is called on the copying thread after each ticket's end."""
        self._copy_content = PoolCopier(device_pool, host_pool)
        self._num_layers = len(device_pool.layers)
        self._on_done = on_done
        self._pace = pace or Pace()
        self._changed = threading.Condition()  # guards the next three
        self._closing = False
        self._loads: deque[_Job] = deque()
        self._mirrors: deque[_Job] = deque()
        self._rests_until = 0.0  # by perf_counter; only the thread uses it
        self._thread = threading.Thread(target=self._run, name="radixgate-copies", daemon=True)
        self._thread.start()

    def submit(self, copy: Copy) -> Ticket:
        ticket = Ticket(copy)
        with self._changed:
            accepted = not self._closing
            if accepted:
                self._queue_of(ticket).append(_Job(ticket))
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
        started = perf_counter()
        self._copy_content(job.next_unit(self._pace.unit_tokens))
        worked_s = perf_counter() - started
        job.worked_s += worked_s
        if ticket.copy.direction is Direction.MIRROR:
            self._rests_until = perf_counter() + self._pace.rest_s(worked_s)
        if job.tokens_done == len(ticket.copy):
            ticket.advance(self._num_layers)
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


class _Job:
    """How far the thread is with a copy."""

    __slots__ = ("ticket", "tokens_done", "worked_s")

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.tokens_done = 0
        self.worked_s = 0.0

    def next_unit(self, max_tokens: int) -> Copy:
        """Return the next piece of the copy, which counts as done from now on."""
        whole = self.ticket.copy
        start = self.tokens_done
        self.tokens_done = end = min(len(whole), start + max_tokens)
        return Copy(whole.direction, whole.device_slots[start:end], whole.host_slots[start:end])
