"""The thread that talks to a store, and the tickets by which others follow it. Knows no store in particular.

    owner thread                       I/O thread
    ------------                       ----------
    lookup, load, save -> ticket
    polls ticket.state      PENDING    batch by batch; reads before saves, between two batches of a save too
                            DONE       `pages` is the result
                            FAILED     `error` says why; `pages` is how far it came

A ticket that is no longer PENDING is a promise: neither its `read` nor its `write` is called again.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from hicache.storage.circuit import Circuit
from hicache.storage.store import PageName, PageStore, StoreUnavailableError
from hicache.storage.tasks import BatchSize, Step, loading, looking_up, removing, saving

CANCELLED: Final = "cancelled"
CLOSED: Final = "closed"
QUEUE_FULL: Final = "too many pages wait to be saved"

_BATCH_BYTES: Final = 4 << 20
_MAX_QUEUED_PAGES: Final = 1 << 16

_log = logging.getLogger(__name__)


class IoState(Enum):
    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


class IoTicket:
    """How far a task is. Read by its owner from any thread; written by whoever does the task.

    `state` is written once and last: who sees it change sees the final values of all the others.
    """

    __slots__ = ("_on_cancel", "cancelled", "error", "num_bytes", "pages", "seconds", "state")

    def __init__(self, on_cancel: Callable[[], None]) -> None:
        self._on_cancel = on_cancel
        self.cancelled = False
        self.state = IoState.PENDING
        self.error = ""  # "" unless FAILED
        self.seconds = 0.0  # how long the work itself took, without waiting for its turn
        self.num_bytes = 0  # content moved
        self.pages = 0  # leading pages found or written, pages stored, or pages removed; whatever the state

    @property
    def pending(self) -> bool:
        return self.state is IoState.PENDING

    def cancel(self) -> None:
        """Wish it away: it ends as FAILED ("cancelled") before it begins, or before its next batch."""
        if self.pending:
            self.cancelled = True
            self._on_cancel()

    def advance(self, step: Step, seconds: float) -> None:
        """For who does the task: one more batch is done."""
        assert self.pending
        self.pages += step.pages
        self.num_bytes += step.num_bytes
        self.seconds += seconds

    def finish(self) -> None:
        """For who does the task: it is complete."""
        assert self.pending
        self.state = IoState.DONE

    def fail(self, error: str) -> None:
        """For who does the task: it will not be completed."""
        assert self.pending
        self.error = error
        self.state = IoState.FAILED


class PageIo(Protocol):
    """Pages by name, without waiting. All methods return at once; whatever goes wrong ends in the ticket."""

    def lookup(self, names: Sequence[PageName]) -> IoTicket:
        """Count the leading pages that the store has."""
        ...

    def load(self, names: Sequence[PageName], write: Callable[[int, bytes], None]) -> IoTicket:
        """Call `write(i, content)` on another thread for each leading page in order, up to the first one missing."""
        ...

    def save(self, names: Sequence[PageName], read: Callable[[int], bytes]) -> IoTicket:
        """Store what the store lacks; `read(i)` is called on another thread. `pages` is how many it has then."""
        ...

    def remove_group(self, group: bytes) -> IoTicket:
        """Remove a group's pages, those of saves that were asked for before included."""
        ...

    def close(self, timeout_s: float) -> bool:
        """End, and return whether nothing is PENDING any more.

        False: a batch is still under way after `timeout_s`, and may still call `read` or `write`. Later tasks are born
        FAILED. Closing again is harmless.
        """
        ...


@dataclass(frozen=True, slots=True)
class IoStats:
    """The I/O thread's figures: what waits now, and what failed since the start."""

    queued_reads: int
    queued_saves: int
    queued_pages: int  # of the saves
    refused: int  # saves that found the queue full
    failed: int  # tasks that found the store away
    skipped: int  # tasks that were failed at once, because the store had been away a moment ago
    available: bool  # whether the store is asked at present


@dataclass(slots=True, eq=False)
class _Task:
    ticket: IoTicket
    steps: Iterator[Step]
    circuit: Circuit
    num_pages: int


class StorageIo:
    """One thread that does all a store's I/O. It owns the store, and closes it at its end.

    Reads go first: somebody waits for them. A store that is away is left alone for a while, reads and saves apart,
    because a full disk can still be read; meanwhile tasks fail at once. `on_done` is called on the I/O thread after
    a ticket has ended; a save that is refused for `max_queued_pages` is born FAILED, without a call.
    """

    def __init__(
        self,
        store: PageStore,
        *,
        on_done: Callable[[], None],
        max_queued_pages: int = _MAX_QUEUED_PAGES,
        batch_bytes: int = _BATCH_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._on_done = on_done
        self._max_queued_pages = max_queued_pages
        self._batch = BatchSize(batch_bytes)
        self._clock = clock
        self._read_circuit, self._save_circuit = Circuit(), Circuit()
        # Everything below belongs to who holds this.
        self._changed = threading.Condition()
        self._reads: deque[_Task] = deque()
        self._saves: deque[_Task] = deque()  # and removals: these must not overtake saves
        self._queued_pages = 0
        self._refused = self._failed = self._skipped = 0
        self._sweep = False  # somebody cancelled
        self._save_until: float | None = None  # set when closing
        self._thread = threading.Thread(target=self._run, name="storage-io", daemon=True)
        self._thread.start()

    def lookup(self, names: Sequence[PageName]) -> IoTicket:
        return self._submit(self._reads, looking_up(self._store, names), self._read_circuit)

    def load(self, names: Sequence[PageName], write: Callable[[int, bytes], None]) -> IoTicket:
        return self._submit(self._reads, loading(self._store, names, write, self._batch), self._read_circuit)

    def save(self, names: Sequence[PageName], read: Callable[[int], bytes]) -> IoTicket:
        steps = saving(self._store, names, read, self._batch)
        return self._submit(self._saves, steps, self._save_circuit, num_pages=len(names))

    def remove_group(self, group: bytes) -> IoTicket:
        # Not the circuit of saves: on a full disk, removing is what helps.
        return self._submit(self._saves, removing(self._store, group), self._read_circuit)

    def stats(self) -> IoStats:
        """Return the figures; for every thread."""
        with self._changed:
            return IoStats(
                queued_reads=len(self._reads),
                queued_saves=len(self._saves),
                queued_pages=self._queued_pages,
                refused=self._refused,
                failed=self._failed,
                skipped=self._skipped,
                available=not self._read_circuit.wait_s(self._clock()),
            )

    def close(self, timeout_s: float) -> bool:
        """End reads at once, and go on saving for half of the time: what is stored outlives this process."""
        with self._changed:
            if self._save_until is None:
                self._save_until = time.monotonic() + timeout_s / 2
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _submit(self, queue: deque[_Task], steps: Iterator[Step], circuit: Circuit, *, num_pages: int = 0) -> IoTicket:
        ticket = IoTicket(self._wish)
        with self._changed:
            if self._save_until is not None:
                ticket.fail(CLOSED)
            elif num_pages and self._queued_pages + num_pages > self._max_queued_pages:
                self._refused += 1
                ticket.fail(QUEUE_FULL)
            else:
                queue.append(_Task(ticket, steps, circuit, num_pages))
                self._queued_pages += num_pages
                self._changed.notify()
        return ticket

    def _wish(self) -> None:
        with self._changed:
            self._sweep = True
            self._changed.notify()

    # ------------------------------------------------------------------------------------------- on the I/O thread

    def _run(self) -> None:
        try:
            while self._wait():
                self._end_unwanted()
                if (task := self._first()) is not None:
                    self._advance(task)
        finally:
            self._store.close()

    def _wait(self) -> bool:
        """Wait for something to do; False when closing and all is done."""
        with self._changed:
            while not (self._reads or self._saves):
                if self._save_until is not None:
                    return False
                self._changed.wait()
            return True

    def _end_unwanted(self) -> None:
        with self._changed:
            if not self._sweep and self._save_until is None:
                return
            self._sweep = False
            cancelled = [task for task in (*self._reads, *self._saves) if task.ticket.cancelled]
            closed: list[_Task] = []
            if self._save_until is not None:
                closed += self._reads
                closed += self._saves if time.monotonic() >= self._save_until else ()
        for task in cancelled:
            self._end(task, CANCELLED)
        for task in closed:
            if task.ticket.pending:
                self._end(task, CLOSED)

    def _first(self) -> _Task | None:
        with self._changed:
            return self._reads[0] if self._reads else self._saves[0] if self._saves else None

    def _advance(self, task: _Task) -> None:
        """Do one batch of a task."""
        begun = self._clock()
        wait_s = task.circuit.wait_s(begun)
        if wait_s:
            self._skipped += 1
            self._end(task, f"{task.circuit.reason} (next try in {wait_s:.1f} s)")
            return
        try:
            step = next(task.steps, None)
        except StoreUnavailableError as error:
            self._failed += 1
            task.circuit.failed(self._clock(), str(error))
            self._end(task, str(error))
        except Exception as error:  # noqa: BLE001 - whatever one task meets, the others go on
            _log.exception("a storage task failed")
            self._end(task, f"{type(error).__name__}: {error}")
        else:
            if step is None:
                self._end(task)
            else:
                task.circuit.succeeded()
                task.ticket.advance(step, self._clock() - begun)

    def _end(self, task: _Task, error: str = "") -> None:
        task.steps = iter(())  # lets go of the caller's `read` or `write`
        with self._changed:
            (self._reads if task in self._reads else self._saves).remove(task)
            self._queued_pages -= task.num_pages
        if error:
            task.ticket.fail(error)
        else:
            task.ticket.finish()
        try:
            self._on_done()
        except Exception:  # noqa: BLE001 - whatever one task meets, the others go on
            _log.exception("what is to be done after a storage task failed")
