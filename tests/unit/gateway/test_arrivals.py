"""Who waits for a worker is woken by it, and gives up in time."""

import asyncio

import pytest

from gateway.dispatch.arrivals import Arrivals, Patience
from gateway.errors import NoWorkerError


class Observer:
    def __init__(self) -> None:
        self.waits: list[bool] = []

    def worker_awaited(self, seconds: float, found: bool) -> None:
        self.waits.append(found)


class Door:
    """What there is a worker for, once it is open."""

    def __init__(self) -> None:
        self.open = False
        self.looks = 0

    async def look(self) -> str:
        self.looks += 1
        if not self.open:
            raise NoWorkerError("closed")
        return "served"


@pytest.fixture
def observer() -> Observer:
    return Observer()


@pytest.fixture
async def arrivals() -> Arrivals:
    return Arrivals()


async def test_where_there_is_a_worker_nobody_waits(arrivals: Arrivals, observer: Observer) -> None:
    door = Door()
    door.open = True
    assert await Patience(arrivals, 60.0, observer).until(door.look) == "served"
    assert observer.waits == []


async def test_every_change_is_looked_at_until_a_worker_is_there(arrivals: Arrivals, observer: Observer) -> None:
    door = Door()
    waiting = asyncio.create_task(Patience(arrivals, 600.0, observer).until(door.look))
    for looks in (1, 2, 3):
        while door.looks < looks:  # noqa: ASYNC110 - a few turns of the loop
            await asyncio.sleep(0)
        arrivals.notify()
    door.open = True
    arrivals.notify()
    assert await asyncio.wait_for(waiting, 10) == "served"
    assert observer.waits == [True]


async def test_patience_ends(arrivals: Arrivals, observer: Observer) -> None:
    door = Door()
    for patience, at_most_s in (
        (Patience(arrivals, 0.01, observer), None),
        (Patience(arrivals, 600.0, observer), 0.01),
    ):
        with pytest.raises(NoWorkerError):
            await asyncio.wait_for(patience.until(door.look, at_most_s), 10)
    assert observer.waits == [False, False]


async def test_nobody_waits_at_a_gateway_that_ends(arrivals: Arrivals, observer: Observer) -> None:
    door = Door()
    waiting = asyncio.create_task(Patience(arrivals, 600.0, observer).until(door.look))
    await asyncio.sleep(0)
    arrivals.close()
    with pytest.raises(NoWorkerError):
        await asyncio.wait_for(waiting, 10)
    with pytest.raises(NoWorkerError):
        await asyncio.wait_for(Patience(arrivals, 600.0, observer).until(door.look), 10)


async def test_other_errors_are_nobodys_patience(arrivals: Arrivals, observer: Observer) -> None:
    async def look() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await Patience(arrivals, 600.0, observer).until(look)
    assert observer.waits == []
