"""Redis is killed under load and comes back: nobody is refused, no budget opens twice, and usage is exact."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from redis.asyncio import Redis

from gateway.config import QuotaConfig, RedisConfig
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import FOUR, IDS, Refusal, Stack, gateway
from tests.integration.quota_support import (
    KillableRedis,
    QuotaState,
    eventually,
    gateways,
    policies,
    quota_state,
    usage_of,
)

LIMITED = policies(
    requests_per_minute=100_000, tokens_per_minute=10_000_000, max_concurrent_requests=500, max_queued_requests=50
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KillableRedis]:
    with KillableRedis(tmp_path) as made:
        yield made


@pytest.fixture
async def client(server: KillableRedis) -> AsyncIterator[Redis]:
    async with Redis.from_url(server.url, decode_responses=True) as made:
        yield made


class Load:
    """Calls of acme at several gateways, one after the other on each of several lanes, until told to stop."""

    def __init__(self, stacks: list[Stack], lanes: int = 6) -> None:
        self.served = 0
        self.failures: list[str] = []
        self._over = asyncio.Event()
        self._lanes = [asyncio.ensure_future(self._lane(stacks[i % len(stacks)])) for i in range(lanes)]

    async def until_served(self, more: int, timeout_s: float = 30) -> None:
        wanted = self.served + more

        async def is_so() -> bool:
            return self.served >= wanted or bool(self.failures)

        await eventually(is_so, timeout_s)

    async def stop(self) -> None:
        self._over.set()
        await asyncio.gather(*self._lanes)

    async def _lane(self, stack: Stack) -> None:
        while not self._over.is_set():
            try:
                await stack.generate(**FOUR)
                self.served += 1
            except grpc.aio.AioRpcError as error:
                self.failures.append(f"{error.code().name}: {error.details()}")
            await asyncio.sleep(0.01)


async def everything_is_settled(client: Redis, stacks: list[Stack], served: int) -> None:
    """Wait until Redis has all that was served, in usage and in the windows."""

    async def usage_is_exact() -> bool:
        return (await usage_of(stacks[0])).requests == served

    async def windows_are() -> bool:
        return await quota_state(client) == QuotaState(served, served * (len(IDS) + 4), 0, 0)

    with contextlib.suppress(TimeoutError):
        await eventually(usage_is_exact)
    usage = await usage_of(stacks[0])
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (served, served * len(IDS), served * 4)
    with contextlib.suppress(TimeoutError):
        await eventually(windows_are)
    state = await quota_state(client)
    assert (state.running, state.waiting) == (0, 0)
    # Redis may have admitted a call at the moment that it was killed, and could not say so.
    assert state.tokens >= served * (len(IDS) + 4)
    assert state.requests >= served


async def test_nobody_notices_that_redis_was_killed(server: KillableRedis, client: Redis, worker: FakeWorker) -> None:
    redis = RedisConfig(url=server.url, timeout_s=1.0)
    async with gateways(2, server.url, [worker], policies=LIMITED, redis=redis) as stacks:
        load = Load(stacks)
        await load.until_served(50)
        server.kill()
        await load.until_served(100)
        await asyncio.sleep(2)
        server.start()
        await load.until_served(100)
        await stopped_when_redis_decides_again(load, stacks)
        assert not load.failures
        await everything_is_settled(client, stacks, load.served)


async def stopped_when_redis_decides_again(load: Load, stacks: list[Stack]) -> None:
    async def decides() -> bool:
        return all(stack.app.serving.quotas._journal.current for stack in stacks)

    await eventually(decides)
    await load.until_served(20)
    await load.stop()


async def test_what_redis_has_lost_of_its_last_moments_is_told_to_it_again(
    server: KillableRedis, client: Redis, worker: FakeWorker, tmp_path: Path
) -> None:
    async with gateways(2, server.url, [worker], policies=LIMITED) as stacks:
        load = Load(stacks)
        await load.until_served(50)
        server.copy_state(tmp_path / "kept")  # as a disk would have it that is not written to at each change
        await load.until_served(60)
        server.kill()
        server.put_back_state(tmp_path / "kept")
        server.start()
        await load.until_served(50)
        await stopped_when_redis_decides_again(load, stacks)
        assert not load.failures
        await everything_is_settled(client, stacks, load.served)


async def served_of(stack: Stack, calls: int) -> int:
    served = 0
    for _ in range(calls):
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stack.generate(**FOUR)
            served += 1
    return served


async def test_neither_the_beginning_nor_the_end_of_an_outage_opens_another_budget(
    server: KillableRedis, client: Redis, worker: FakeWorker
) -> None:
    async with gateways(2, server.url, [worker], policies=policies(requests_per_minute=10)) as stacks:

        async def know_each_other() -> bool:
            return all(stack.app.serving.quotas._journal.gateways == 2 for stack in stacks)

        stacks[0].app.serving.quotas._journal._renew_at = 0.0  # at once, and not in some seconds
        stacks[0].app.serving.quotas._journal.write_soon()
        await eventually(know_each_other)
        assert [await served_of(stacks[0], 3), await served_of(stacks[1], 1)] == [3, 1]
        server.kill()
        # Each has five of the ten, whoever admitted what it has used of them.
        assert [await served_of(stack, 8) for stack in stacks] == [2, 4]
        server.start()

        async def decides() -> bool:
            return all(stack.app.serving.quotas._journal.current for stack in stacks)

        await eventually(decides)
        assert (await quota_state(client)).requests == 10
        for stack in stacks:
            assert await served_of(stack, 3) == 0


async def test_a_gateway_may_be_told_to_refuse_without_redis(server: KillableRedis, worker: FakeWorker) -> None:
    quota = QuotaConfig(store_away="refuse")
    async with gateway(
        server.url, [worker], tenants=("acme", "free"), policies=policies(requests_per_minute=100), quota=quota
    ) as stack:
        for tenant in ("acme", "free"):
            await stack.generate(tenant, **FOUR)
        server.kill()
        refused = await stack.refused(**FOUR)
        assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "QUOTA_STORE_UNAVAILABLE")
        assert refused.retry_delay_s is not None
        await stack.generate("free", **FOUR)
        server.start()

        async def is_served() -> bool:
            return await served_of(stack, 1) == 1

        await eventually(is_served)


async def test_a_gateway_may_be_told_to_keep_no_limits_without_redis(
    server: KillableRedis, client: Redis, worker: FakeWorker
) -> None:
    quota = QuotaConfig(store_away="allow")
    async with gateway(server.url, [worker], policies=policies(requests_per_minute=3), quota=quota) as stack:
        assert await served_of(stack, 2) == 2
        server.kill()
        assert await served_of(stack, 10) == 10
        server.start()

        async def is_refused() -> bool:
            try:
                await stack.generate(**FOUR)
            except grpc.aio.AioRpcError as error:
                return Refusal.of(error).metadata.get("limit") == "requests_per_minute"
            return False

        await eventually(is_refused)
        assert (await quota_state(client)).requests >= 12
