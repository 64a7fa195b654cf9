"""Calls that wait for a place: in which order they get one, and by which terms."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.config import RedisConfig
from gateway.errors import QuotaExceededError
from gateway.identity.redis_store import connect
from gateway.policy import Terms
from gateway.quota import keys
from gateway.quota.accounts import Account, Demand
from tests.integration.one_gateway import Gateway, caller, running
from tests.integration.quota_support import QuotaState, eventually, quota_state

ONE_PLACE = Terms(max_concurrent_requests=1, max_queued_requests=10)


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    made = connect(RedisConfig(url=redis_url))
    yield made
    await made.aclose()


async def _waits(client: Redis, count: int) -> bool:
    return (await quota_state(client)).waiting == count


async def test_who_waits_is_served_by_arrival_although_redis_has_lost_the_first_ones_ticket(client: Redis) -> None:
    who = caller(ONE_PLACE)
    served: list[int] = []

    async def serve(number: int) -> None:
        await gateway.serve(who)
        served.append(number)

    async with running(Gateway(client, "one")) as gateway:
        async with gateway.quotas.admit(who, Demand("Generate"), Account()):
            waiting = []
            for i in range(3):
                waiting.append(asyncio.create_task(serve(i)))
                await eventually(functools.partial(_waits, client, i + 1))
            before, gateway.store.fails_before = gateway.store.failures, 1.0

            async def has_asked_in_vain() -> bool:
                return gateway.store.failures > before

            await eventually(has_asked_in_vain)
            gateway.store.fails_before = 0
            await eventually(functools.partial(_waits, client, 2))
        async with asyncio.timeout(10):
            await asyncio.gather(*waiting)
        assert served == [0, 1, 2]


async def test_who_waits_is_served_by_arrival_although_redis_has_them_in_another_order(client: Redis) -> None:
    who = caller(ONE_PLACE)
    async with running(Gateway(client, "one")) as gateway:
        async with gateway.quotas.admit(who, Demand("Generate"), Account()):
            waiting = []
            for i in range(3):
                waiting.append(asyncio.create_task(gateway.serve(who)))
                await eventually(functools.partial(_waits, client, i + 1))
            line: Any = await client.zrange(keys.line("acme"), 0, -1)
            await client.zadd(keys.line("acme"), {ticket: -turn for turn, ticket in enumerate(line)})
        async with asyncio.timeout(10):
            await asyncio.gather(*waiting)


# ------------------------------------------------------------------------------------------------- terms that change


async def waiting_calls(client: Redis, gateway: Gateway, count: int) -> list[asyncio.Task[None]]:
    calls = []
    for i in range(count):
        calls.append(asyncio.create_task(gateway.serve(caller(ONE_PLACE))))
        await eventually(functools.partial(_waits, client, i + 1))
    return calls


@pytest.mark.parametrize("new", [Terms(max_concurrent_requests=5), Terms(requests_per_minute=100), Terms()], ids=repr)
async def test_who_waits_gets_in_when_the_limit_is_raised_or_removed(client: Redis, new: Terms) -> None:
    async with running(Gateway(client, "one")) as gateway:
        async with gateway.quotas.admit(caller(ONE_PLACE), Demand("Generate"), Account()):
            waiting = await waiting_calls(client, gateway, 3)
            gateway.terms.changed = new
            async with asyncio.timeout(3):
                await asyncio.gather(*waiting)
            await eventually(functools.partial(_waits, client, 0))
        await eventually(lambda: _nothing_runs(client))


async def _nothing_runs(client: Redis) -> bool:
    return (await quota_state(client)).running == 0


async def test_who_waits_is_kept_to_a_limit_that_is_lowered(client: Redis) -> None:
    two = caller(Terms(max_concurrent_requests=2, max_queued_requests=10))
    async with running(Gateway(client, "one")) as gateway, contextlib.AsyncExitStack() as last:
        await last.enter_async_context(gateway.quotas.admit(two, Demand("Generate"), Account()))
        async with gateway.quotas.admit(two, Demand("Generate"), Account()):
            waiting = asyncio.create_task(gateway.serve(two))
            await eventually(functools.partial(_waits, client, 1))
            gateway.terms.changed = ONE_PLACE
        await eventually(lambda: _state_is(client, QuotaState(0, 0, 1, 1)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6):  # it asks four times in this time
                await asyncio.shield(waiting)
        await last.aclose()
        await waiting


async def _state_is(client: Redis, state: QuotaState) -> bool:
    return await quota_state(client) == state


async def test_who_waits_and_would_never_fit_any_more_is_told_so(client: Redis) -> None:
    async with running(Gateway(client, "one")) as gateway:
        async with gateway.quotas.admit(caller(ONE_PLACE), Demand("Generate"), Account()):
            (waiting,) = await waiting_calls(client, gateway, 1)
            gateway.terms.changed = Terms(max_concurrent_requests=1, max_queued_requests=10, tokens_per_minute=5)
            with pytest.raises(QuotaExceededError, match=r"tokens_per_minute is 5, .* it never fits"):
                await waiting
            await eventually(functools.partial(_waits, client, 0))
