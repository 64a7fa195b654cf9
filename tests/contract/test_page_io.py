"""What storage I/O promises its owner: the thread's, and the fakes' that stand for it in tests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from hicache.storage.fake_io import InstantIo, ManualIo
from hicache.storage.io import IoState, IoTicket, PageIo, StorageIo
from hicache.storage.memory import MemoryStore
from hicache.storage.store import PageName
from tests.processes import wait_until

GROUP = b"g" * 16


def names(*numbers: int) -> list[PageName]:
    return [PageName(GROUP, number.to_bytes(16, "big")) for number in numbers]


def content(number: int) -> bytes:
    return bytes([number]) * 50


@dataclass
class Setting:
    store: MemoryStore
    io: PageIo
    finish: Callable[[], object]  # lets everything that was asked for end
    calls: list[None]  # one for each `on_done`
    written: list[tuple[int, bytes]] = field(default_factory=list)

    def ended(self, ticket: IoTicket) -> IoTicket:
        self.finish()
        wait_until(lambda: not ticket.pending, what="the end of the ticket")
        return ticket

    def write(self, index: int, content: bytes) -> None:
        self.written.append((index, content))


@pytest.fixture(params=["thread", "manual", "instant"])
def setting(request: pytest.FixtureRequest) -> Iterator[Setting]:
    store = MemoryStore(1 << 20)
    store.put([(name, content(number)) for number, name in enumerate(names(*range(40)))])
    calls: list[None] = []

    def on_done() -> None:
        calls.append(None)

    if request.param == "thread":
        threaded = StorageIo(store, on_done=on_done)
        yield Setting(store, threaded, lambda: None, calls)
        assert threaded.close(timeout_s=10.0)
    elif request.param == "manual":
        manual = ManualIo(store, on_done)
        yield Setting(store, manual, manual.finish_all, calls)
    else:
        yield Setting(store, InstantIo(store, on_done), lambda: None, calls)


def test_a_lookup_counts_the_leading_pages(setting: Setting) -> None:
    ticket = setting.ended(setting.io.lookup(names(0, 1, 2, 99, 3)))
    assert (ticket.state, ticket.pages, ticket.error) == (IoState.DONE, 3, "")


def test_a_load_writes_the_leading_pages_in_order(setting: Setting) -> None:
    ticket = setting.ended(setting.io.load(names(*range(35), 99, 36), setting.write))
    assert (ticket.state, ticket.pages, ticket.num_bytes) == (IoState.DONE, 35, 35 * 50)
    assert setting.written == [(number, content(number)) for number in range(35)]


def test_a_load_of_nothing_stored_is_done_with_no_page(setting: Setting) -> None:
    ticket = setting.ended(setting.io.load(names(99, 0), setting.write))
    assert (ticket.state, ticket.pages) == (IoState.DONE, 0)
    assert setting.written == []


def test_a_save_reads_only_what_the_store_lacks(setting: Setting) -> None:
    asked: list[int] = []

    def read(index: int) -> bytes:
        asked.append(index)
        return content(100 + index)

    ticket = setting.ended(setting.io.save(names(0, 100, 1, 101), read))
    assert (ticket.state, ticket.pages, ticket.num_bytes) == (IoState.DONE, 4, 100)
    assert asked == [1, 3]
    assert setting.store.get(names(100, 101)) == [content(101), content(103)]


def test_a_group_is_removed(setting: Setting) -> None:
    ticket = setting.ended(setting.io.remove_group(GROUP))
    assert (ticket.state, ticket.pages) == (IoState.DONE, 40)
    assert setting.store.contains(names(0)) == [False]


def test_a_task_without_pages_is_done(setting: Setting) -> None:
    for ticket in (
        setting.io.lookup([]),
        setting.io.load([], setting.write),
        setting.io.save([], lambda index: b""),
    ):
        assert (setting.ended(ticket).state, ticket.pages) == (IoState.DONE, 0)


def test_a_write_that_raises_fails_its_ticket_and_nothing_else(setting: Setting) -> None:
    def write(index: int, content: bytes) -> None:
        raise ValueError(f"page {index} has a wrong size")

    ticket = setting.ended(setting.io.load(names(0, 1), write))
    assert (ticket.state, ticket.error) == (IoState.FAILED, "ValueError: page 0 has a wrong size")
    assert setting.ended(setting.io.lookup(names(0))).pages == 1


def test_the_owner_is_told_after_every_end(setting: Setting) -> None:
    setting.ended(setting.io.lookup(names(0)))
    setting.ended(setting.io.load(names(0), setting.write))
    wait_until(lambda: len(setting.calls) == 2, what="two calls")


def test_cancelling_what_has_ended_changes_nothing(setting: Setting) -> None:
    ticket = setting.ended(setting.io.lookup(names(0)))
    ticket.cancel()
    assert (ticket.state, ticket.pages) == (IoState.DONE, 1)


def test_after_close_tasks_are_born_failed(setting: Setting) -> None:
    assert setting.io.close(timeout_s=10.0)
    ticket = setting.io.lookup(names(0))
    assert (ticket.state, ticket.error) == (IoState.FAILED, "closed")
    assert setting.io.close(timeout_s=10.0)
