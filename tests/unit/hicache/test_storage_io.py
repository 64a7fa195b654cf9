"""The storage thread: order, cancelling, a store that is away, and its end."""

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from hicache.storage.fake_io import ManualIo
from hicache.storage.io import IoState, IoTicket, StorageIo
from hicache.storage.memory import MemoryStore
from hicache.storage.store import PageName, StoreUnavailableError
from tests.processes import wait_until

GROUP = b"g" * 16
PAGE_BYTES = 50


def names(*numbers: int) -> list[PageName]:
    return [PageName(GROUP, number.to_bytes(16, "big")) for number in numbers]


def content(index: int) -> bytes:
    return bytes([index]) * PAGE_BYTES


class GatedStore(MemoryStore):
    """Keeps a log of calls; `put` waits at a gate, and all calls fail while the store is away."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.log: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.at_gate = threading.Event()
        self.away = False
        self.full = False
        self.closed = 0

    def put(self, pages: Sequence[tuple[PageName, bytes]]) -> int:
        self.log.append("put")
        self.at_gate.set()
        assert self.gate.wait(30.0)
        if self.full:
            raise StoreUnavailableError("the disk is full")
        return super().put(pages)

    def get(self, names: Sequence[PageName]) -> list[bytes | None]:
        self._call("get")
        return super().get(names)

    def contains(self, names: Sequence[PageName]) -> list[bool]:
        self._call("contains")
        return super().contains(names)

    def remove_group(self, group: bytes) -> int:
        self._call("remove_group")
        return super().remove_group(group)

    def close(self) -> None:
        self.closed += 1

    def _call(self, what: str) -> None:
        self.log.append(what)
        if self.away:
            raise StoreUnavailableError("the server does not answer")


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def nothing() -> None:
    pass


def never_read(index: int) -> bytes:
    raise AssertionError(f"page {index} was read")


def never_write(index: int, content: bytes) -> None:
    raise AssertionError(f"page {index} was written")


@pytest.fixture
def store() -> GatedStore:
    return GatedStore()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def io(store: GatedStore, clock: Clock) -> Iterator[StorageIo]:
    """Batches of one page; at most ten pages wait."""
    io = StorageIo(store, on_done=nothing, max_queued_pages=10, batch_bytes=PAGE_BYTES, clock=clock)
    ended(io.save(names(0), content))  # from here on it knows how large a page is
    store.log.clear()
    store.at_gate.clear()
    yield io
    store.gate.set()
    assert io.close(timeout_s=10.0)


def ended(ticket: IoTicket) -> IoTicket:
    wait_until(lambda: not ticket.pending, what="the end of the ticket")
    return ticket


def held_up(io: StorageIo, store: GatedStore, *numbers: int) -> IoTicket:
    """A save that waits in its first `put` until the gate opens."""
    store.gate.clear()
    ticket = io.save(names(*numbers), content)
    assert store.at_gate.wait(10.0)
    return ticket


def test_reads_go_between_the_batches_of_a_save(io: StorageIo, store: GatedStore) -> None:
    save = held_up(io, store, 1, 2, 3)
    load = io.load(names(0), lambda index, content: None)
    store.gate.set()
    ended(save)
    assert store.log == ["contains", "put", "get", "contains", "put", "contains", "put"]
    assert load.state is IoState.DONE


def test_a_group_is_removed_after_the_saves_that_were_asked_for_before(io: StorageIo, store: GatedStore) -> None:
    held_up(io, store, 1)
    io.save(names(2), content)
    removal = io.remove_group(GROUP)
    store.gate.set()
    assert ended(removal).pages == 3
    assert store.contains(names(0, 1, 2)) == [False] * 3


def test_what_is_cancelled_before_it_begins_fails_without_touching_the_store(io: StorageIo, store: GatedStore) -> None:
    held_up(io, store, 1)
    queued = [io.load(names(0), never_write), io.save(names(5), never_read)]
    for ticket in queued:
        ticket.cancel()
    store.gate.set()
    assert [(ended(ticket).state, ticket.error) for ticket in queued] == [(IoState.FAILED, "cancelled")] * 2
    assert "get" not in store.log


def test_what_is_cancelled_under_way_stops_before_its_next_batch(io: StorageIo, store: GatedStore) -> None:
    save = held_up(io, store, 1, 2, 3)
    save.cancel()
    assert save.pending
    store.gate.set()
    assert (ended(save).state, save.error, save.pages) == (IoState.FAILED, "cancelled", 1)
    assert store.contains(names(1, 2)) == [True, False]


def test_a_save_beyond_the_bound_is_refused_at_once(io: StorageIo, store: GatedStore) -> None:
    first = held_up(io, store, 1)
    second = io.save(names(*range(10, 19)), content)
    refused = io.save(names(30), never_read)
    assert (refused.state, refused.error) == (IoState.FAILED, "too many pages wait to be saved")
    assert (io.stats().queued_saves, io.stats().queued_pages, io.stats().refused) == (2, 10, 1)
    store.gate.set()
    assert (ended(first).pages, ended(second).pages) == (1, 9)
    assert io.stats().queued_pages == 0
    assert ended(io.save(names(30), content)).state is IoState.DONE


def test_a_store_that_is_away_is_left_alone_for_a_while(io: StorageIo, store: GatedStore, clock: Clock) -> None:
    store.away = True
    assert ended(io.lookup(names(0))).error == "the server does not answer"
    assert not io.stats().available
    skipped = ended(io.load(names(0), never_write))
    assert (skipped.state, skipped.error) == (IoState.FAILED, "the server does not answer (next try in 1.0 s)")
    assert store.log == ["contains"]
    assert (io.stats().failed, io.stats().skipped) == (1, 1)


def test_a_store_that_is_back_is_found_by_itself(io: StorageIo, store: GatedStore, clock: Clock) -> None:
    store.away = True
    ended(io.lookup(names(0)))
    clock.now += 1.0
    ended(io.lookup(names(0)))  # a second failure in a row: two seconds now
    store.away = False
    clock.now += 1.0
    assert ended(io.lookup(names(0))).state is IoState.FAILED
    clock.now += 1.0
    assert ended(io.lookup(names(0))).pages == 1
    assert io.stats().available


def test_a_full_disk_can_still_be_read_and_emptied(io: StorageIo, store: GatedStore) -> None:
    store.full = True
    assert ended(io.save(names(1), content)).error == "the disk is full"
    assert ended(io.save(names(2), never_read)).error.startswith("the disk is full (next try")
    assert ended(io.lookup(names(0))).pages == 1
    assert ended(io.remove_group(GROUP)).state is IoState.DONE


def test_a_load_that_fails_half_way_says_how_far_it_came(io: StorageIo, store: GatedStore) -> None:
    ended(io.save(names(1, 2), content))
    written: list[int] = []

    def write(index: int, content: bytes) -> None:
        written.append(index)
        store.away = index == 1

    load = ended(io.load(names(0, 1, 2), write))
    assert (load.state, load.pages, written) == (IoState.FAILED, 2, [0, 1])


def test_an_owner_that_raises_when_told_does_not_end_the_thread(store: GatedStore) -> None:
    def complain() -> None:
        raise ValueError("told")

    io = StorageIo(store, on_done=complain)
    assert ended(io.lookup(names(0))).state is IoState.DONE
    assert ended(io.lookup(names(0))).state is IoState.DONE
    assert io.close(timeout_s=10.0)


def test_what_the_caller_gave_is_let_go_of_at_the_end(io: StorageIo) -> None:
    class Pool:
        alive = 0

        def __init__(self) -> None:
            Pool.alive += 1

        def __del__(self) -> None:
            Pool.alive -= 1

        def read(self, index: int) -> bytes:
            return content(index)

    ticket = io.save(names(7), Pool().read)
    ended(ticket)
    wait_until(lambda: Pool.alive == 0, what="the end of the pool")


def test_close_ends_reads_and_lets_saves_go_on(io: StorageIo, store: GatedStore) -> None:
    save = held_up(io, store, 1, 2)
    load = io.load(names(0), never_write)
    closing = threading.Thread(target=io.close, args=(60.0,))
    closing.start()
    wait_until(lambda: io.lookup([]).error == "closed", what="closing")
    store.gate.set()
    closing.join(30.0)
    assert (load.state, load.error) == (IoState.FAILED, "closed")
    assert (save.state, save.pages) == (IoState.DONE, 2)
    assert store.closed == 1


def test_close_says_when_a_batch_is_still_under_way(io: StorageIo, store: GatedStore) -> None:
    save = held_up(io, store, 1, 2)
    assert not io.close(timeout_s=0.01)
    assert save.pending
    store.gate.set()
    assert io.close(timeout_s=10.0)
    assert (save.state, save.error, save.pages) == (IoState.FAILED, "closed", 1)


def test_the_fake_ends_tasks_when_it_is_told_to() -> None:
    store = MemoryStore(1 << 20)
    store.put([(name, content(number)) for number, name in enumerate(names(0, 1, 2))])
    io = ManualIo(store)
    written: list[int] = []
    write: Callable[[int, bytes], None] = lambda index, content: written.append(index)  # noqa: E731
    partial, cancelled, whole = (io.load(names(0, 1, 2), write) for _ in range(3))
    assert partial.pending
    assert written == []
    io.advance()
    io.fail("the network is slow")
    assert (partial.state, partial.error, partial.pages, written) == (IoState.FAILED, "the network is slow", 1, [0])
    cancelled.cancel()
    io.finish_all()
    assert (cancelled.error, cancelled.pages, whole.state, whole.pages) == ("cancelled", 0, IoState.DONE, 3)
