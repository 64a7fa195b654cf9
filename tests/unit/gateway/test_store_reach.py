"""Nobody waits for a Redis that is away."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from cli.embedded_redis import EmbeddedRedis
from gateway.errors import UnavailableError
from gateway.identity.reach import StoreReach


class Told:
    def __init__(self) -> None:
        self.reachable: list[bool] = []

    def store_reachable(self, reachable: bool) -> None:
        self.reachable.append(reachable)


@pytest.fixture
def told() -> Told:
    return Told()


def reach_of(told: Told, timeout_s: float = 5.0) -> StoreReach:
    return StoreReach(Redis(port=1), timeout_s, told, probe_s=0.01)


async def answer() -> str:
    return "answer"


async def never() -> str:
    await asyncio.Event().wait()
    return "never"


def failing(error: Exception) -> Callable[[], Awaitable[str]]:
    async def fail() -> str:
        raise error

    return fail


async def test_an_answer_is_passed_on(told: Told) -> None:
    assert await reach_of(told).call(answer) == "answer"
    assert told.reachable == [True]


@pytest.mark.parametrize("error", [RedisConnectionError("gone"), OSError("gone"), TimeoutError()], ids=repr)
async def test_the_first_failure_closes_the_way_and_later_calls_fail_at_once(told: Told, error: Exception) -> None:
    reach = reach_of(told)
    with pytest.raises(UnavailableError):
        await reach.call(failing(error))
    assert reach.away
    with pytest.raises(UnavailableError):
        await reach.call(never)
    assert told.reachable == [True, False]


async def test_a_slow_answer_is_none(told: Told) -> None:
    reach = reach_of(told, timeout_s=0.01)
    with pytest.raises(UnavailableError):
        await reach.call(never)
    assert reach.away


async def test_a_loop_that_was_held_up_is_no_outage(told: Told) -> None:
    """The answer is there by the time that the loop can look."""
    reach, loop = reach_of(told, timeout_s=0.05), asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:

        async def ask() -> bytes:
            return await loop.sock_recv(ours, 1)

        def hold_up() -> None:
            theirs.send(b"!")
            time.sleep(0.2)

        for _ in range(5):
            loop.call_soon(hold_up)
            assert await reach.call(ask) == b"!"
    assert told.reachable == [True]


async def test_the_probe_waits_for_a_loop_that_was_held_up(told: Told) -> None:
    with EmbeddedRedis.start() as server:
        async with Redis.from_url(server.url) as client:
            reach = StoreReach(client, 0.2, told, probe_s=0.01)
            with pytest.raises(UnavailableError):
                await reach.call(failing(OSError("gone")))
            probe = asyncio.create_task(reach.run())
            async with asyncio.timeout(10):
                while reach.away:
                    time.sleep(0.03)  # noqa: ASYNC251 - others keep the loop busy
                    await asyncio.sleep(0)
            probe.cancel()
    assert told.reachable == [True, False, True]


async def test_a_refusal_by_redis_is_no_outage(told: Told) -> None:
    reach = reach_of(told)
    with pytest.raises(UnavailableError):
        await reach.call(failing(ResponseError("WRONGTYPE")))
    assert not reach.away
    assert await reach.call(answer) == "answer"


async def test_who_was_cancelled_before_may_still_call(told: Told) -> None:
    """As in the cleaning up of a task that ends."""
    reach, outcomes = reach_of(told), []

    async def cleans_up() -> None:
        try:
            await never()
        finally:
            outcomes.append(await reach.call(answer))

    task = asyncio.create_task(cleans_up())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert outcomes == ["answer"]


async def test_the_probe_ends_when_it_is_cancelled(told: Told) -> None:
    reach = reach_of(told)
    with pytest.raises(UnavailableError):
        await reach.call(failing(OSError("gone")))
    for _ in range(20):
        probe = asyncio.create_task(reach.run())
        await asyncio.sleep(0.012)
        probe.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await probe
