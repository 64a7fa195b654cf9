"""A call to Redis that is cancelled ends its task, whatever the client makes of that."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.identity.reach import StoreReach
from gateway.observer import NullObserver


async def returns_all_the_same() -> int:
    """What `asyncio.wait_for` does where the result comes with the cancellation."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return 1
    return 0


async def fails_all_the_same() -> int:
    await returns_all_the_same()
    raise RedisConnectionError("gone")


@pytest.mark.parametrize("make", [returns_all_the_same, fails_all_the_same])
async def test_a_cancellation_that_the_client_swallows_ends_the_task(make: Callable[[], Awaitable[int]]) -> None:
    reach = StoreReach(Redis(), 30.0, NullObserver())
    task = asyncio.create_task(reach.call(make))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_deadline_that_passes_during_a_call_is_kept() -> None:
    reach = StoreReach(Redis(), 30.0, NullObserver())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await reach.call(returns_all_the_same)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_an_answer_that_comes_with_the_calls_own_time_out_counts() -> None:
    reach = StoreReach(Redis(), 0.01, NullObserver())
    assert await reach.call(returns_all_the_same) == 1
    assert not reach.away
