"""Settlements reach Redis exactly once, whatever happens on the way."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import structlog
from redis.asyncio import Redis

from gateway.config import RedisConfig
from gateway.errors import QuotaExceededError, UnavailableError
from gateway.identity.redis_store import connect
from gateway.observer import NullObserver
from gateway.policy import Terms
from gateway.quota import keys
from gateway.quota.accounts import Account, Demand
from gateway.quota.deciding import NothingGoes
from tests.integration.one_gateway import Gateway, caller, running
from tests.integration.quota_support import QuotaState, eventually, quota_state


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    made = connect(RedisConfig(url=redis_url))
    yield made
    await made.aclose()


async def usage(client: Redis, tenant: str = "acme") -> tuple[int, int]:
    """Return requests, and tokens of prompts and completions."""
    totals = {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0}
    days: Any = await client.smembers(keys.usage_days(tenant))
    for day in days:
        for field, amount in (await client.hgetall(keys.usage(tenant, day))).items():
            for name in totals:
                if f'"{name}"' in field:
                    totals[name] += int(amount)
    return totals["requests"], totals["prompt_tokens"] + totals["completion_tokens"]


async def all_written(client: Redis, gateway: Gateway) -> None:
    async def is_so() -> bool:
        return await usage(client) == (gateway.requests, gateway.tokens) and gateway.journal.current

    try:
        await eventually(is_so)
    except TimeoutError:
        assert await usage(client) == (gateway.requests, gateway.tokens)
        raise


@pytest.mark.parametrize("seed", range(3))
async def test_calls_that_fail_before_or_after_count_once(client: Redis, seed: int) -> None:
    async with running(Gateway(client, "one")) as gateway:
        gateway.store.chance = random.Random(seed)
        gateway.store.fails_before = gateway.store.fails_after = 0.3
        async with asyncio.timeout(30):
            while gateway.store.failures < 12:
                await asyncio.gather(*(gateway.serve(caller(), i) for i in range(3)))
                await asyncio.sleep(0.005)
        gateway.store.fails_before = gateway.store.fails_after = 0
        await all_written(client, gateway)
        state = await quota_state(client)
        assert (state.running, state.waiting) == (0, 0)
        # What Redis admitted without saying so stays charged for its minute; nothing is missing.
        assert state.tokens >= gateway.tokens
        assert state.requests >= gateway.requests


async def test_what_was_admitted_without_redis_is_written_to_its_windows_later(client: Redis) -> None:
    async with running(Gateway(client, "one")) as gateway:
        await gateway.serve(caller())
        gateway.store.away = True
        for _ in range(20):
            await gateway.serve(caller())
        assert await usage(client) != (gateway.requests, gateway.tokens)
        gateway.store.away = False
        await all_written(client, gateway)
        assert await quota_state(client) == QuotaState(21, gateway.tokens, 0, 0)


async def test_requests_that_run_over_an_outage_hold_their_places_again(client: Redis) -> None:
    who = caller(Terms(max_concurrent_requests=2))
    async with running(Gateway(client, "one")) as gateway:
        async with gateway.quotas.admit(who, Demand("Generate"), Account()):
            gateway.store.away = True
            async with gateway.quotas.admit(who, Demand("Generate"), Account()):  # without Redis
                gateway.store.away = False
                await client.flushall()

                async def both_are_there() -> bool:
                    return (await quota_state(client)).running == 2 and gateway.journal.current

                await eventually(both_are_there)
                async with running(Gateway(client, "two")) as other:
                    with pytest.raises(QuotaExceededError, match="max_concurrent_requests is 2"):
                        await other.serve(who)
        await eventually(lambda: _runs(client, 0))


async def _runs(client: Redis, count: int) -> bool:
    return (await quota_state(client)).running == count


async def snapshot(redis_url: str) -> dict[bytes, bytes]:
    async with Redis.from_url(redis_url) as raw:
        found: Any = [(key, await raw.dump(key)) for key in await raw.keys("*")]
        return dict(found)


async def put_back(client: Redis, kept: dict[bytes, bytes]) -> None:
    async with client.pipeline(transaction=True) as pipeline:
        pipeline.flushall()
        for key, value in kept.items():
            pipeline.restore(key, 0, value)
        await pipeline.execute()


async def test_a_redis_that_comes_back_without_its_last_moments_is_told_them_again(
    client: Redis, redis_url: str
) -> None:
    async with running(Gateway(client, "one")) as gateway:
        for _ in range(5):
            await gateway.serve(caller())
        await all_written(client, gateway)
        kept = await snapshot(redis_url)
        for i in range(30):
            await gateway.serve(caller(), i)
            await asyncio.sleep(0.003)
        await all_written(client, gateway)
        assert await quota_state(client) == QuotaState(35, gateway.tokens, 0, 0)
        await put_back(client, kept)
        assert (await quota_state(client)).requests == 5
        await gateway.serve(caller())  # nothing fails: that something is missing shows in the answers
        await all_written(client, gateway)
        await eventually(lambda: _charged(client, QuotaState(36, gateway.tokens, 0, 0)))


async def _charged(client: Redis, state: QuotaState) -> bool:
    return await quota_state(client) == state


async def test_a_redis_that_has_forgotten_everything_does_not_stop_the_journal(client: Redis) -> None:
    async with running(Gateway(client, "one")) as gateway:
        gateway.journal._newest = gateway.journal._acknowledged = 50  # long ago, and no longer kept
        await client.hset(keys.gateway("one"), "batch", "50")
        await gateway.serve(caller())
        await all_written(client, gateway)
        await client.flushall()
        await gateway.serve(caller())
        await all_written(client, gateway)


async def test_a_key_that_somebody_has_spoilt_holds_up_no_other(client: Redis) -> None:
    async with running(Gateway(client, "one")) as gateway:
        await gateway.serve(caller(Terms(), "spoilt"))

        async def is_written() -> bool:
            return await usage(client, "spoilt") == (1, 15)

        await eventually(is_written)
        days: Any = await client.smembers(keys.usage_days("spoilt"))
        (day,) = days
        await client.set(keys.usage("spoilt", day), "no hash")
        gateway.requests = gateway.tokens = 0
        with structlog.testing.capture_logs() as logs:
            who = caller()
            account = Account("model", "")
            async with gateway.quotas.admit(caller(Terms(), "spoilt"), Demand("Generate"), account):
                account.admitted = True
            await gateway.serve(who)
            await all_written(client, gateway)
        assert "redis refused changes of quotas or usage" in [log["event"] for log in logs]


async def test_what_was_settled_is_written_before_the_end(client: Redis) -> None:
    gateway = Gateway(client, "one")
    async with running(gateway):
        for _ in range(20):
            await gateway.serve(caller())
    assert await usage(client) == (20, 300)
    assert await client.zcard(keys.GATEWAYS) == 0


async def test_what_cannot_be_written_before_the_end_is_logged(client: Redis) -> None:
    gateway = Gateway(client, "one")
    gateway.quotas.start()
    await gateway.serve(caller())
    await all_written(client, gateway)
    gateway.store.away = True
    await gateway.serve(caller())
    with structlog.testing.capture_logs() as logs:
        await gateway.quotas.stop(0.3)
    (lost,) = [log for log in logs if log["log_level"] == "error"]
    assert (lost["requests"], lost["prompt_tokens"], lost["completion_tokens"]) == (1, 10, 5)
    assert lost["by_tenant"] == {"acme": 15}


async def test_what_a_gateway_held_that_was_killed_comes_back(client: Redis) -> None:
    who = caller(Terms(max_concurrent_requests=1))
    dead = Gateway(client, "dead", lease_s=1.0)
    dead.quotas.start()
    permit = dead.quotas.admit(who, Demand("Generate"), Account())
    await permit.__aenter__()
    await asyncio.sleep(1.5)  # it renews its lease for as long as it lives
    async with running(Gateway(client, "living", lease_s=1.0)) as living:
        with pytest.raises(QuotaExceededError, match="max_concurrent_requests is 1"):
            await living.serve(who)
        for task in dead.quotas._tasks:  # killed: it neither renews nor settles
            task.cancel()

        async def is_free() -> bool:
            try:
                await living.serve(who)
            except QuotaExceededError:
                return False
            return True

        await eventually(is_free, 4)


async def test_a_caller_that_is_gone_before_redis_answers_holds_nothing(client: Redis) -> None:
    async with running(Gateway(client, "one")) as gateway:
        for i in range(50):
            call = asyncio.ensure_future(gateway.serve(caller()))
            for _ in range(i % 10):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        await all_written(client, gateway)

        async def nothing_is_held() -> bool:
            state = await quota_state(client)
            return (state.running, state.tokens) == (0, gateway.tokens)

        await eventually(nothing_is_held)


class Decisions(NullObserver):
    def __init__(self) -> None:
        self.told: list[tuple[str, str, str, str]] = []

    def quota_decided(self, tenant: str, outcome: str, limit: str, by: str) -> None:
        self.told.append((tenant, outcome, limit, by))


async def test_without_redis_and_with_the_policy_to_refuse_only_limited_tenants_are_refused(client: Redis) -> None:
    decisions = Decisions()
    gateway = Gateway(client, "one", alone=NothingGoes(), observer=decisions)
    async with running(gateway):
        gateway.store.away = True
        with pytest.raises(UnavailableError) as refused:
            await gateway.serve(caller())
        assert decisions.told == [("acme", "refused", "", "refuse")]
        assert refused.value.retry_after_s is not None
        await gateway.serve(caller(Terms()))
        gateway.store.away = False
        await all_written(client, gateway)
        await gateway.serve(caller())


TEST_CLOCK = "local now = tonumber(redis.call('GET', '{radixgate}:test-clock'))\n"


class Minutes:
    """Calls at several gateways over minutes of a made-up clock, and what each has charged."""

    def __init__(self, gateways: Sequence[Gateway], limit: int, seed: int) -> None:
        self.now = 1_800_000_000.0
        self.charged: list[tuple[float, int]] = []
        self.refused = 0
        self._gateways = gateways
        self._limit = limit
        self._chance = random.Random(seed)
        self._who = caller(Terms(tokens_per_minute=limit))

    async def call(self, i: int) -> None:
        gateway, chance = self._gateways[i % len(self._gateways)], self._chance
        wanted, account = chance.randint(1, self._limit // 4), Account("model", "")
        try:
            async with gateway.quotas.admit(self._who, Demand("Generate", wanted), account):
                index, at = len(self.charged), self.now
                self.charged.append((at, wanted))
                for _ in range(chance.randint(0, 30)):
                    await asyncio.sleep(0.001)
                account.admitted, account.prompt_tokens = True, chance.randint(0, wanted)
            self.charged[index] = (at, account.prompt_tokens)
        except QuotaExceededError:
            self.refused += 1

    def fullest(self) -> int:
        """Return the most that was admitted in the minute that ends now."""
        return sum(tokens for at, tokens in self.charged if at >= self.now - 60)


@pytest.mark.parametrize("seed", [0])
async def test_over_three_gateways_no_minute_has_more_than_the_limit(client: Redis, seed: int) -> None:
    limit = 200
    async with contextlib.AsyncExitStack() as stack:
        gateways = [Gateway(client, name, clock=TEST_CLOCK) for name in ("one", "two", "three")]
        minutes = Minutes(gateways, limit, seed)
        await client.set("{radixgate}:test-clock", round(minutes.now * 1e6))
        for gateway in gateways:
            await stack.enter_async_context(running(gateway))
        calls: list[asyncio.Future[None]] = []
        chance, fullest = random.Random(seed), 0
        for i in range(120):
            # Only while no call is on its way to Redis: so each is known to have been admitted at one time.
            await asyncio.sleep(0.02)
            minutes.now += chance.choice([0.1, 0.9, 1.0, 2.5, 7.0])
            await client.set("{radixgate}:test-clock", round(minutes.now * 1e6))
            calls += [asyncio.ensure_future(minutes.call(3 * i + j)) for j in range(chance.randint(1, 6))]
            await asyncio.sleep(0.02)
            fullest = max(fullest, minutes.fullest())
            assert minutes.fullest() <= limit
        await asyncio.gather(*calls)
        assert fullest > limit * 0.8
        assert min(minutes.refused, len(minutes.charged)) > 30
