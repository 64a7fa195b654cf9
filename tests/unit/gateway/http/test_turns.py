"""Several prompts of one request: no more at a time than allowed; places that are about to be free are waited for."""

import asyncio

import pytest

from gateway.errors import QuotaExceededError, UnavailableError
from gateway.http.turns import AT_A_TIME, Turns


def no_place(limit: str = "max_concurrent_requests") -> QuotaExceededError:
    return QuotaExceededError("over", limit=limit, value=1, retry_after_s=1.0)


class Places:
    """Serves in `free` places, each of which stays taken for a while after it was left."""

    def __init__(self, free: int, taken_s: float = 0.0) -> None:
        self.free = free
        self.taken_s = taken_s
        self.served: list[int] = []
        self.most = 0
        self.running = 0

    async def serve(self, place: int) -> None:
        if self.free == 0:
            raise no_place()
        self.free -= 1
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.served.append(place)
        self.running -= 1
        asyncio.get_running_loop().call_later(self.taken_s, self._release)

    def _release(self) -> None:
        self.free += 1


@pytest.mark.parametrize(("max_running", "most"), [(1, 1), (3, 3), (None, AT_A_TIME), (1000, AT_A_TIME)])
async def test_no_more_run_at_a_time_than_may(max_running: int | None, most: int) -> None:
    places = Places(free=1000)
    await Turns(40, max_running, places.serve).run()
    assert sorted(places.served) == list(range(40))
    assert places.most == most


async def test_a_place_that_was_just_left_is_waited_for() -> None:
    places = Places(free=2, taken_s=0.03)
    await Turns(6, 2, places.serve).run()
    assert sorted(places.served) == list(range(6))


async def test_places_that_others_hold_are_waited_for_while_ours_run() -> None:
    places = Places(free=1)  # of 4 that the tenant has
    await Turns(6, 4, places.serve).run()
    assert sorted(places.served) == list(range(6))
    assert places.most == 1


async def test_without_any_place_the_request_is_refused_at_once() -> None:
    with pytest.raises(QuotaExceededError):
        await asyncio.wait_for(Turns(6, 2, Places(free=0).serve).run(), 1)


async def test_places_that_never_come_free_are_given_up() -> None:
    places = Places(free=1, taken_s=1000)
    async with asyncio.timeout(20):
        with pytest.raises(QuotaExceededError):
            await Turns(2, 1, places.serve).run()
    assert len(places.served) == 1


async def test_other_limits_are_not_waited_for() -> None:
    calls = 0

    async def serve(place: int) -> None:
        nonlocal calls
        calls += 1
        if place:
            raise no_place("tokens_per_minute")

    with pytest.raises(QuotaExceededError):
        await Turns(2, 1, serve).run()
    assert calls == 2


async def test_the_first_failure_ends_all() -> None:
    ended: list[int] = []

    async def serve(place: int) -> None:
        if place == 1:
            raise UnavailableError("away")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(place)

    with pytest.raises(UnavailableError):
        await Turns(3, None, serve).run()
    assert sorted(ended) == [0, 2]
