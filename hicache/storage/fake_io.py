"""Storage I/O without a thread, for tests: `ManualIo` ends a task when the test says so, `InstantIo` at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hicache.storage.io import CANCELLED, CLOSED, IoTicket
from hicache.storage.store import PageName, PageStore, StoreUnavailableError
from hicache.storage.tasks import BatchSize, Step, loading, looking_up, removing, saving

TaskKind = Literal["lookup", "load", "save", "remove_group"]

_BATCH_BYTES: Final = 4 << 20


def _ignore() -> None:
    """Nobody waits."""


@dataclass(slots=True, eq=False)
class ManualTask:
    """What was asked for: `names` of a lookup, load or save, `group` of a removal."""

    kind: TaskKind
    names: tuple[PageName, ...]
    group: bytes
    ticket: IoTicket
    steps: Iterator[Step]


class ManualIo:
    """Tasks wait in `tasks`, in the order they came, until the test ends them. A batch is one page."""

    def __init__(self, store: PageStore, on_done: Callable[[], None] = _ignore) -> None:
        self._store = store
        self._on_done = on_done
        self._one_page = BatchSize(1)
        self._one_page.saw(1, 1)
        self._closed = False
        self.tasks: list[ManualTask] = []

    def lookup(self, names: Sequence[PageName]) -> IoTicket:
        return self._add("lookup", looking_up(self._store, names), names)

    def load(self, names: Sequence[PageName], write: Callable[[int, bytes], None]) -> IoTicket:
        return self._add("load", loading(self._store, names, write, self._one_page), names)

    def save(self, names: Sequence[PageName], read: Callable[[int], bytes]) -> IoTicket:
        return self._add("save", saving(self._store, names, read, self._one_page), names)

    def remove_group(self, group: bytes) -> IoTicket:
        return self._add("remove_group", removing(self._store, group), (), group)

    def close(self, timeout_s: float) -> bool:
        """Fail what waits."""
        self._closed = True
        for task in tuple(self.tasks):
            self._end(task, CLOSED)
        return True

    def advance(self, task: ManualTask | None = None) -> bool:
        """Do one batch of `task`, or of the oldest; return False when that was its end."""
        task = task or self.tasks[0]
        if task.ticket.cancelled:
            self._end(task, CANCELLED)
            return False
        try:
            step = next(task.steps, None)
        except Exception as error:  # noqa: BLE001 - whatever one task meets, the others go on
            away = isinstance(error, StoreUnavailableError)
            self._end(task, str(error) if away else f"{type(error).__name__}: {error}")
            return False
        if step is None:
            self._end(task)
            return False
        task.ticket.advance(step, seconds=0.0)
        return True

    def finish(self, task: ManualTask | None = None) -> None:
        """Do all of `task`, or of the oldest."""
        task = task or self.tasks[0]
        while self.advance(task):
            pass

    def finish_all(self) -> None:
        """Do all that waits, and what is asked for meanwhile."""
        while self.tasks:
            self.finish()

    def fail(self, error: str, task: ManualTask | None = None) -> None:
        """End `task`, or the oldest, as FAILED with what it has done so far."""
        self._end(task or self.tasks[0], error)

    def _add(self, kind: TaskKind, steps: Iterator[Step], names: Sequence[PageName], group: bytes = b"") -> IoTicket:
        ticket = IoTicket(_ignore)
        if self._closed:
            ticket.fail(CLOSED)
        else:
            self.tasks.append(ManualTask(kind, tuple(names), group, ticket, steps))
        return ticket

    def _end(self, task: ManualTask, error: str = "") -> None:
        self.tasks.remove(task)
        if error:
            task.ticket.fail(error)
        else:
            task.ticket.finish()
        self._on_done()


class InstantIo:
    """Every ticket has ended when it is returned."""

    def __init__(self, store: PageStore, on_done: Callable[[], None] = _ignore) -> None:
        self._store = store
        self._manual = ManualIo(store, on_done)

    def lookup(self, names: Sequence[PageName]) -> IoTicket:
        return self._done(self._manual.lookup(names))

    def load(self, names: Sequence[PageName], write: Callable[[int, bytes], None]) -> IoTicket:
        return self._done(self._manual.load(names, write))

    def save(self, names: Sequence[PageName], read: Callable[[int], bytes]) -> IoTicket:
        return self._done(self._manual.save(names, read))

    def remove_group(self, group: bytes) -> IoTicket:
        return self._done(self._manual.remove_group(group))

    def close(self, timeout_s: float) -> bool:
        """Close the store too, as the thread does at its end."""
        self._store.close()
        return self._manual.close(timeout_s)

    def _done(self, ticket: IoTicket) -> IoTicket:
        self._manual.finish_all()
        return ticket
