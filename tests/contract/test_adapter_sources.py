"""Whatever brings adapters to places does it in the order in which it is asked, and says of each load how it ended."""

from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
import torch

from tests.processes import wait_until
from worker.engine.adapters import AdapterSource, AdapterTicket
from worker.engine.fake import FakeAdapters
from worker.lora.loader import AdapterLoader
from worker.lora.weights import AdapterWeights, LowRank

NUM_PLACES = 3
BROKEN = "broken"


class Bench(Protocol):
    """A source that knows the adapters a, b and BROKEN, the last of which can't be brought anywhere."""

    source: AdapterSource

    def lies_at(self, place: int) -> str | None: ...


class FakeBench:
    def __init__(self) -> None:
        self._adapters = FakeAdapters(NUM_PLACES)
        self._adapters.broken = {BROKEN}
        self.source: AdapterSource = self._adapters

    def lies_at(self, place: int) -> str | None:
        return self._adapters.places[place]

    def close(self) -> None:
        return


class _Bank:
    def __init__(self) -> None:
        self.places: dict[int, str] = {}

    def put(self, place: int, adapter: AdapterWeights) -> None:
        if adapter.revision == BROKEN:
            raise MemoryError
        self.places[place] = adapter.revision

    def clear(self, place: int) -> None:
        self.places.pop(place, None)


class LoaderBench:
    def __init__(self) -> None:
        self._bank = _Bank()
        self._loader = AdapterLoader(self._bank, NUM_PLACES, lambda: None)
        for revision in ("a", "b", BROKEN):
            low_rank = LowRank(torch.zeros(1, 2), torch.zeros(2, 1), 1.0)
            self._loader.add(AdapterWeights(revision, {"q_proj": low_rank}))
        self.source: AdapterSource = self._loader

    def lies_at(self, place: int) -> str | None:
        return self._bank.places.get(place)

    def close(self) -> None:
        self._loader.close()


@pytest.fixture(params=[FakeBench, LoaderBench])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    make: Callable[[], FakeBench | LoaderBench] = request.param
    made = make()
    yield made
    made.close()


def ended(ticket: AdapterTicket) -> bool:
    """Wait for a load; return whether it failed."""
    wait_until(lambda: ticket.done, timeout_s=10, what="an adapter brought to its place")
    return ticket.failed


def test_an_adapter_lies_where_it_was_to_be_brought(bench: Bench) -> None:
    assert bench.source.num_places == NUM_PLACES
    assert not ended(bench.source.load("a", 2))
    assert [bench.lies_at(place) for place in range(NUM_PLACES)] == [None, None, "a"]


def test_the_later_adapter_of_a_place_stays(bench: Bench) -> None:
    tickets = [bench.source.load(revision, 0) for revision in ("a", "b")]
    assert [ended(ticket) for ticket in tickets] == [False, False]
    assert bench.lies_at(0) == "b"


def test_a_place_that_is_cleared_and_given_away_again_ends_up_with_the_later_adapter(bench: Bench) -> None:
    bench.source.load("a", 0)
    bench.source.forget("a", 0)
    assert not ended(bench.source.load("b", 0))
    assert bench.lies_at(0) == "b"


def test_a_forgotten_adapter_lies_nowhere(bench: Bench) -> None:
    ended(bench.source.load("a", 1))
    bench.source.forget("a", 1)
    bench.source.forget("b", None)
    wait_until(lambda: bench.lies_at(1) is None, timeout_s=10, what="a place cleared")


def test_a_load_that_fails_says_so_and_leaves_its_place_empty(bench: Bench) -> None:
    ended(bench.source.load("a", 0))
    ticket = bench.source.load(BROKEN, 0)
    assert ended(ticket)
    assert ticket.done
    assert bench.lies_at(0) is None
    assert not ended(bench.source.load("b", 0))
