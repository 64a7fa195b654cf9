"""What limits promise, whoever keeps them: the scripts in Redis, or one gateway in memory."""

import random
from collections.abc import AsyncIterator
from typing import Protocol

import pytest
from redis.asyncio import Redis

from gateway.config import RedisConfig
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import connect
from gateway.observer import NullObserver
from gateway.quota import keys
from gateway.quota.bounds import LINE, PLACES, REQUESTS, TOKENS, Admitted, Ask, Bounds, Decision, Queued, Refused
from gateway.quota.ledger import Ledger
from gateway.quota.local import LocalLimits
from gateway.quota.shared import Holdings, SharedLimits

START = 1_800_000_000.25
TEST_CLOCK = "local now = tonumber(redis.call('GET', '{radixgate}:test-clock'))\n"


class Keeper(Protocol):
    async def at(self, now: float) -> None:
        """From now on it is `now`."""
        ...

    async def admit(self, ask: Ask, *, waits: bool = False) -> Decision: ...

    async def release(self, ask: Ask, admitted: Admitted, at: float, unused_tokens: int = 0) -> None: ...

    async def leave(self, ask: Ask) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self.local = LocalLimits()
        self.now = START

    async def at(self, now: float) -> None:
        self.now = now

    async def admit(self, ask: Ask, *, waits: bool = False) -> Decision:
        return self.local.admit(ask, self.now, waits=waits)

    async def release(self, ask: Ask, admitted: Admitted, at: float, unused_tokens: int = 0) -> None:
        self.local.release(ask, at, unused_tokens)

    async def leave(self, ask: Ask) -> None:
        self.local.leave(ask)


class InRedis:
    def __init__(self, client: Redis, lease_s: float = 1000.0) -> None:
        self.client = client
        reach = StoreReach(client, 5.0, NullObserver())
        self.store = SharedLimits(client, reach, "gateway-1", lease_s, 400, TEST_CLOCK)
        self.other = SharedLimits(client, reach, "gateway-2", lease_s, 400, TEST_CLOCK)
        self.batches = 0

    async def at(self, now: float) -> None:
        await self.client.set("{radixgate}:test-clock", round(now * 1e6))

    async def admit(self, ask: Ask, *, waits: bool = False) -> Decision:
        return await self.store.admit(ask, waits=waits)

    async def release(self, ask: Ask, admitted: Admitted, at: float, unused_tokens: int = 0) -> None:
        ledger = Ledger()
        assert admitted.second is not None
        ledger.charge(ask.tenant, admitted.second, 0, -unused_tokens)
        ledger.free(ask.tenant, ask.lease)
        await self.write(ledger)

    async def leave(self, ask: Ask) -> None:
        ledger = Ledger()
        ledger.leave(ask.tenant, ask.lease)
        await self.write(ledger)

    async def write(self, ledger: Ledger) -> None:
        self.batches += 1
        applied = await self.store.apply(self.batches, ledger.take(), whatever_was_before=False)
        assert (applied.holds, applied.failures) == (True, 0)


@pytest.fixture
async def in_redis(redis_url: str) -> AsyncIterator[InRedis]:
    client = connect(RedisConfig(url=redis_url))
    keeper = InRedis(client)
    await keeper.at(START)
    yield keeper
    await client.aclose()


@pytest.fixture(params=["memory", "redis"])
def keeper(request: pytest.FixtureRequest) -> Keeper:
    if request.param == "memory":
        return InMemory()
    made: Keeper = request.getfixturevalue("in_redis")
    return made


def ask(lease: object = "a", tokens: int = 0, **bounds: int) -> Ask:
    return Ask("acme", str(lease), tokens, Bounds(**bounds))


async def test_as_many_requests_as_the_limit_are_admitted_and_then_none(keeper: Keeper) -> None:
    decisions = [await keeper.admit(ask(i, requests_per_minute=3)) for i in range(5)]
    assert [type(decision) for decision in decisions] == [Admitted] * 3 + [Refused] * 2
    assert decisions[3] == Refused(REQUESTS, 3, 60.75)  # the rest of the second, and a minute


async def test_a_refused_call_is_admitted_at_the_moment_it_was_told_and_not_before(keeper: Keeper) -> None:
    for i, (at, tokens) in enumerate([(0.0, 40), (7.3, 30), (7.9, 20), (21.0, 10)]):
        await keeper.at(START + at)
        assert isinstance(await keeper.admit(ask(i, tokens, tokens_per_minute=100)), Admitted)
    await keeper.at(START + 30)
    wanted = ask("late", 80, tokens_per_minute=100)  # needs the first three to have gone
    refusal = await keeper.admit(wanted)
    assert isinstance(refusal, Refused)
    assert (refusal.limit, refusal.value) == (TOKENS, 100)
    assert refusal.retry_after_s is not None
    opens = START + 30 + refusal.retry_after_s
    await keeper.at(opens - 2e-6)
    assert isinstance(await keeper.admit(wanted), Refused)
    await keeper.at(opens)
    assert isinstance(await keeper.admit(wanted), Admitted)


async def test_a_request_that_can_never_fit_is_told_so(keeper: Keeper) -> None:
    assert await keeper.admit(ask(tokens=101, tokens_per_minute=100)) == Refused(TOKENS, 100, None)


async def test_what_one_limit_refuses_takes_nothing_of_the_others(keeper: Keeper) -> None:
    bounds = {"requests_per_minute": 2, "tokens_per_minute": 100, "max_concurrent_requests": 2}
    assert isinstance(await keeper.admit(ask("a", 90, **bounds)), Admitted)
    for i in range(5):
        refusal = await keeper.admit(ask(i, 20, **bounds))
        assert isinstance(refusal, Refused)
        assert refusal.limit == TOKENS
    assert isinstance(await keeper.admit(ask("b", 10, **bounds)), Admitted)


async def test_the_limit_that_opens_last_is_the_one_that_is_named(keeper: Keeper) -> None:
    bounds = {"requests_per_minute": 2, "tokens_per_minute": 100}
    await keeper.admit(ask("a", 1, **bounds))
    await keeper.at(START + 10)
    await keeper.admit(ask("b", 99, **bounds))
    assert await keeper.admit(ask("c", 50, **bounds)) == Refused(TOKENS, 100, 60.75)
    assert await keeper.admit(ask("c", 0, **bounds)) == Refused(REQUESTS, 2, 50.75)


async def test_tokens_that_were_not_used_can_be_used_by_others(keeper: Keeper) -> None:
    first = ask("a", 100, tokens_per_minute=100)
    admitted = await keeper.admit(first)
    assert isinstance(admitted, Admitted)
    assert isinstance(await keeper.admit(ask("b", 1, tokens_per_minute=100)), Refused)
    await keeper.at(START + 5)
    await keeper.release(first, admitted, START, unused_tokens=70)
    assert isinstance(await keeper.admit(ask("b", 71, tokens_per_minute=100)), Refused)
    assert isinstance(await keeper.admit(ask("b", 70, tokens_per_minute=100)), Admitted)
    # What was used counts from when it was admitted: first the 30, then the 70.
    assert await keeper.admit(ask("c", 30, tokens_per_minute=100)) == Refused(TOKENS, 100, 55.75)


async def test_giving_back_after_the_minute_gives_nothing(keeper: Keeper) -> None:
    first = ask("a", 100, tokens_per_minute=100)
    admitted = await keeper.admit(first)
    assert isinstance(admitted, Admitted)
    await keeper.at(START + 61)
    assert isinstance(await keeper.admit(ask("b", 100, tokens_per_minute=100)), Admitted)
    await keeper.release(first, admitted, START, unused_tokens=100)
    assert isinstance(await keeper.admit(ask("c", 1, tokens_per_minute=100)), Refused)


@pytest.mark.parametrize("seed", range(8))
async def test_no_minute_wherever_it_begins_has_more_than_the_limit(keeper: Keeper, seed: int) -> None:
    chance, now, limit = random.Random(seed), START, 100
    admitted: list[tuple[float, int]] = []  # when, and what is still charged
    running: list[tuple[int, Ask, Admitted]] = []
    for i in range(150):
        now += chance.choice([0.0, 1 / 64, 0.5, 1.0, 3.0, 59.0 if i % 29 == 0 else 0.25])  # exact, also in microseconds
        await keeper.at(now)
        wanted = ask(i, chance.randint(1, 40), tokens_per_minute=limit)
        decision = await keeper.admit(wanted)
        if isinstance(decision, Admitted):
            running.append((len(admitted), wanted, decision))
            admitted.append((now, wanted.tokens))
        elif chance.random() < 0.3:
            assert isinstance(decision, Refused)
            assert decision.retry_after_s is not None
            now += decision.retry_after_s
            await keeper.at(now)
            again = await keeper.admit(wanted)
            assert isinstance(again, Admitted), "the time that was told was not true"
            running.append((len(admitted), wanted, again))
            admitted.append((now, wanted.tokens))
        if running and chance.random() < 0.4:
            index, done, its = running.pop(chance.randrange(len(running)))
            unused = chance.randint(0, done.tokens)
            await keeper.release(done, its, admitted[index][0], unused)
            admitted[index] = (admitted[index][0], done.tokens - unused)
        in_the_minute = sum(tokens for at, tokens in admitted if now - 60 <= at <= now)
        assert in_the_minute <= limit
    assert len(admitted) > 40


async def test_no_more_run_than_there_are_places(keeper: Keeper) -> None:
    asks = [ask(i, max_concurrent_requests=2) for i in range(3)]
    first, second, third = [await keeper.admit(each) for each in asks]
    assert isinstance(first, Admitted)
    assert isinstance(second, Admitted)
    assert third == Refused(PLACES, 2, None)
    await keeper.release(asks[0], first, START)
    assert isinstance(await keeper.admit(asks[2]), Admitted)


async def test_who_waits_gets_in_by_arrival_and_nobody_overtakes(keeper: Keeper) -> None:
    bounds = {"max_concurrent_requests": 1, "max_queued_requests": 2}
    runs, first, second, third = [ask(name, **bounds) for name in ("runs", "first", "second", "third")]
    admitted = await keeper.admit(runs)
    assert isinstance(admitted, Admitted)
    assert await keeper.admit(first) == Queued(0)
    assert await keeper.admit(second) == Queued(1)
    assert await keeper.admit(third) == Refused(LINE, 2, None)
    await keeper.release(runs, admitted, START)
    assert await keeper.admit(third) == Refused(LINE, 2, None), "a newcomer took the place"
    assert await keeper.admit(second, waits=True) == Queued(1), "the second overtook the first"
    admitted = await keeper.admit(first, waits=True)
    assert isinstance(admitted, Admitted)
    assert await keeper.admit(third) == Queued(1)
    await keeper.leave(second)
    await keeper.release(first, admitted, START)
    assert isinstance(await keeper.admit(third, waits=True), Admitted)


async def test_who_waits_is_charged_when_it_gets_in(keeper: Keeper) -> None:
    bounds = {"max_concurrent_requests": 1, "max_queued_requests": 5, "tokens_per_minute": 100}
    runs, waits = ask("runs", 60, **bounds), ask("waits", 40, **bounds)
    admitted = await keeper.admit(runs)
    assert isinstance(admitted, Admitted)
    assert await keeper.admit(waits) == Queued(0)
    await keeper.release(runs, admitted, START)
    assert isinstance(await keeper.admit(waits, waits=True), Admitted)
    assert isinstance(await keeper.admit(ask("more", 1, **bounds)), Refused)


async def test_tenants_do_not_share_limits(keeper: Keeper) -> None:
    bounds = Bounds(requests_per_minute=1, max_concurrent_requests=1)
    for tenant in ("acme", "globex"):
        assert isinstance(await keeper.admit(Ask(tenant, tenant, 0, bounds)), Admitted)
        assert isinstance(await keeper.admit(Ask(tenant, f"{tenant}-2", 0, bounds)), Refused)


# ------------------------------------------------------------------------------------------------ what only Redis does


async def test_a_call_repeated_after_a_lost_answer_takes_one_place(in_redis: InRedis) -> None:
    wanted = ask("a", max_concurrent_requests=2)
    assert isinstance(await in_redis.admit(wanted), Admitted)
    assert await in_redis.admit(wanted) == Admitted(None)
    assert isinstance(await in_redis.admit(ask("b", max_concurrent_requests=2)), Admitted)


async def test_admissions_are_numbered_for_each_gateway(in_redis: InRedis) -> None:
    numbers: list[int] = []
    for store in (in_redis.store, in_redis.other, in_redis.store):
        decision = await store.admit(ask(len(numbers), requests_per_minute=9), waits=False)
        assert isinstance(decision, Admitted)
        numbers.append(decision.number)
    assert numbers == [1, 1, 2]


async def test_places_and_turns_of_a_gateway_that_has_died_come_back(in_redis: InRedis) -> None:
    bounds = {"max_concurrent_requests": 1, "max_queued_requests": 1}
    for name in ("runs", "waits"):
        await in_redis.admit(ask(name, **bounds))
    await in_redis.at(START + 999)
    assert await in_redis.admit(ask("new", **bounds)) == Refused(LINE, 1, None)
    await in_redis.at(START + 1000)
    assert isinstance(await in_redis.admit(ask("new", **bounds)), Admitted)


async def test_what_a_gateway_renews_does_not_expire(in_redis: InRedis) -> None:
    bounds = {"max_concurrent_requests": 1, "max_queued_requests": 1}
    for name in ("runs", "waits"):
        await in_redis.admit(ask(name, **bounds))
    await in_redis.at(START + 900)
    assert (await in_redis.store.renew([Holdings("acme", ("runs",), ("waits",))])).gateways == 1
    await in_redis.at(START + 1899)
    assert await in_redis.admit(ask("new", **bounds)) == Refused(LINE, 1, None)


async def test_gateways_that_live_are_counted(in_redis: InRedis) -> None:
    assert (await in_redis.store.renew([])).gateways == 1
    assert (await in_redis.other.renew([])).gateways == 2
    await in_redis.at(START + 600)
    assert (await in_redis.other.renew([])).gateways == 2
    await in_redis.at(START + 1100)
    assert (await in_redis.other.renew([])).gateways == 1
    await in_redis.other.sign_off()
    assert (await in_redis.store.renew([])).gateways == 1


async def test_a_clock_that_is_set_back_opens_no_second_budget(in_redis: InRedis) -> None:
    await in_redis.admit(ask("a", 90, tokens_per_minute=100))
    await in_redis.at(START - 3600)
    assert await in_redis.admit(ask("b", 20, tokens_per_minute=100)) == Refused(TOKENS, 100, 60.75)
    await in_redis.at(START - 3600 + 60.75)
    assert isinstance(await in_redis.admit(ask("b", 20, tokens_per_minute=100)), Admitted)


async def test_what_windows_no_longer_count_leaves_nothing_behind(in_redis: InRedis) -> None:
    for i in range(200):
        await in_redis.at(START + i)
        await in_redis.admit(ask(i, 5, tokens_per_minute=10_000, requests_per_minute=1_000))
    assert await in_redis.client.hlen(keys.tokens("acme")) == 61
    assert await in_redis.client.hlen(keys.requests("acme")) == 61
    assert 0 < await in_redis.client.ttl(keys.tokens("acme")) <= 120
