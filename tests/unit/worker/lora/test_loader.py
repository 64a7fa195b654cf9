"""Adapters are brought to their places beside whoever asks, in the order in which they were asked for."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from worker.lora.loader import AdapterLoader
from worker.lora.weights import AdapterWeights, LowRank

DEADLINE_S = 10.0


class FakeBank:
    """Holds back `put` while the gate is closed; refuses what is called "broken"."""

    def __init__(self) -> None:
        self.places: dict[int, str] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.threads = set[int]()

    def put(self, place: int, adapter: AdapterWeights) -> None:
        assert self.gate.wait(DEADLINE_S)
        self.threads.add(threading.get_ident())
        if adapter.revision == "broken":
            raise MemoryError("no room")
        self.places[place] = adapter.revision

    def clear(self, place: int) -> None:
        self.places.pop(place, None)


def weights(revision: str) -> AdapterWeights:
    return AdapterWeights(revision, {"q_proj": LowRank(torch.zeros(1, 2), torch.zeros(2, 1), 1.0)})


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def bank() -> FakeBank:
    return FakeBank()


@pytest.fixture
def bell() -> threading.Event:
    return threading.Event()


@pytest.fixture
def loader(bank: FakeBank, bell: threading.Event) -> Iterator[AdapterLoader]:
    made = AdapterLoader(bank, num_places=3, on_done=bell.set)
    for revision in ("one", "other", "broken"):
        made.add(weights(revision))
    yield made
    bank.gate.set()
    made.close()


def test_a_load_returns_at_once_and_is_done_later(loader: AdapterLoader, bank: FakeBank) -> None:
    bank.gate.clear()
    ticket = loader.load("one", 2)
    assert not ticket.done
    assert not ticket.failed
    bank.gate.set()
    wait_until(lambda: ticket.done)
    assert not ticket.failed
    assert bank.places == {2: "one"}


@pytest.mark.parametrize("revision", ["one", "broken"])
def test_who_waits_for_a_load_is_told_when_it_has_ended(
    revision: str, loader: AdapterLoader, bell: threading.Event
) -> None:
    ticket = loader.load(revision, 0)
    assert bell.wait(DEADLINE_S)
    assert ticket.done


def test_the_bank_is_used_from_one_thread_and_not_the_callers(loader: AdapterLoader, bank: FakeBank) -> None:
    tickets = [loader.load("one", 0), loader.load("other", 1), loader.load("one", 2)]
    wait_until(lambda: all(ticket.done for ticket in tickets))
    assert len(bank.threads) == 1
    assert threading.get_ident() not in bank.threads


def test_a_load_that_fails_says_so_and_leaves_nothing_at_the_place(loader: AdapterLoader, bank: FakeBank) -> None:
    before = loader.load("one", 0)
    ticket = loader.load("broken", 0)
    after = loader.load("other", 1)
    wait_until(lambda: after.done)
    assert ticket.failed
    assert not before.failed
    assert bank.places == {1: "other"}


def test_a_load_of_what_was_forgotten_fails(loader: AdapterLoader) -> None:
    loader.forget("one", None)
    ticket = loader.load("one", 0)
    wait_until(lambda: ticket.done)
    assert ticket.failed


def test_what_is_forgotten_leaves_its_place(loader: AdapterLoader, bank: FakeBank) -> None:
    loader.load("one", 0)
    loader.forget("one", 0)
    after = loader.load("other", 1)
    wait_until(lambda: after.done)
    assert bank.places == {1: "other"}


def test_a_place_that_is_given_away_again_at_once_ends_up_with_the_later_adapter(
    loader: AdapterLoader, bank: FakeBank
) -> None:
    bank.gate.clear()
    loader.load("one", 0)
    loader.forget("one", 0)
    after = loader.load("other", 0)
    bank.gate.set()
    wait_until(lambda: after.done)
    assert bank.places == {0: "other"}


def test_an_adapter_that_is_forgotten_on_its_way_arrives_all_the_same(loader: AdapterLoader, bank: FakeBank) -> None:
    bank.gate.clear()
    ticket = loader.load("one", 0)
    loader.forget("one", None)
    bank.gate.set()
    wait_until(lambda: ticket.done)
    assert bank.places == {0: "one"}
