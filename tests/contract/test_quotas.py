"""What the pipeline may rely on, whoever implements Quotas."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from gateway.config import QuotaConfig, RedisConfig
from gateway.errors import QuotaExceededError
from gateway.identity.callers import Caller
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import connect
from gateway.identity.stores import Tenant
from gateway.observer import NullObserver
from gateway.policy import Terms
from gateway.quota.accounts import Account, Demand, Quotas
from gateway.quota.opening import open_quotas
from tests.fakes.terms import TermsOfATest

FREE = Terms()
WIDE = Terms(requests_per_minute=10**6, tokens_per_minute=10**9, max_concurrent_requests=10**4, max_queued_requests=10)


@contextlib.asynccontextmanager
async def quotas_over(redis_url: str, config: QuotaConfig) -> AsyncIterator[Quotas]:
    client = connect(RedisConfig(url=redis_url))
    reach = StoreReach(client, 2.0, NullObserver())
    made = open_quotas(client, reach, config, NullObserver(), TermsOfATest())
    made.start()
    yield made
    await made.stop(0.1)
    await client.aclose()


@pytest.fixture
async def limited(redis_url: str) -> AsyncIterator[Quotas]:
    async with quotas_over(redis_url, QuotaConfig()) as made:
        yield made


@pytest.fixture(params=["redis", "local", "allow"])
async def quotas(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Quotas]:
    """With Redis, and in the two ways in which calls go on without."""
    if request.param == "redis":
        async with quotas_over(redis_url, QuotaConfig()) as made:
            yield made
    else:
        async with quotas_over("redis://127.0.0.1:1", QuotaConfig(store_away=request.param)) as made:
            yield made


def caller(terms: Terms) -> Caller:
    return Caller(Tenant("acme", "", 1000.0, 1), terms, "key 1", 0.0)


@pytest.mark.parametrize("terms", [FREE, WIDE], ids=["free", "wide"])
async def test_a_call_within_its_limits_goes_on(quotas: Quotas, terms: Terms) -> None:
    quotas.precheck(caller(terms))
    account = Account("model", "")
    async with quotas.admit(caller(terms), Demand("Generate", 100), account):
        account.admitted, account.prompt_tokens, account.completion_tokens = True, 60, 40


@pytest.mark.parametrize("terms", [FREE, WIDE], ids=["free", "wide"])
async def test_what_a_call_raises_passes_through(quotas: Quotas, terms: Terms) -> None:
    with pytest.raises(ZeroDivisionError):
        async with quotas.admit(caller(terms), Demand("Generate", 100), Account()):
            raise ZeroDivisionError


@pytest.mark.parametrize("terms", [FREE, WIDE], ids=["free", "wide"])
async def test_a_call_that_is_cancelled_ends_as_cancelled(quotas: Quotas, terms: Terms) -> None:
    inside = asyncio.Event()

    async def call() -> None:
        async with quotas.admit(caller(terms), Demand("Generate", 100), Account()):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(call())
    await asyncio.wait_for(inside.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_calls_may_overlap_in_any_order(quotas: Quotas) -> None:
    async def call(i: int) -> None:
        async with quotas.admit(caller(WIDE), Demand("CountTokens", counted_tokens=i), Account("model", "")):
            await asyncio.sleep(0.001 * (i % 5))

    await asyncio.gather(*(call(i) for i in range(100)))


# ------------------------------------------------------------------------------------------- what those with limits add


async def test_a_refusal_is_remembered_until_it_no_longer_holds(limited: Quotas) -> None:
    terms = Terms(requests_per_minute=1)
    limited.precheck(caller(terms))
    async with limited.admit(caller(terms), Demand("Generate", 1), Account()):
        pass
    limited.precheck(caller(terms))  # nobody has been refused yet
    with pytest.raises(QuotaExceededError) as first:
        async with limited.admit(caller(terms), Demand("Generate", 1), Account()):
            pass
    with pytest.raises(QuotaExceededError) as again:
        limited.precheck(caller(terms))
    assert (again.value.limit, again.value.metadata) == (first.value.limit, first.value.metadata)
    assert first.value.retry_after_s is not None
    assert again.value.retry_after_s is not None
    assert 0 < again.value.retry_after_s < first.value.retry_after_s
    limited.precheck(caller(Terms(requests_per_minute=2)))  # another limit


@pytest.mark.parametrize("terms", [Terms(tokens_per_minute=10), Terms(max_concurrent_requests=1)])
async def test_what_may_open_at_any_moment_is_asked_again(limited: Quotas, terms: Terms) -> None:
    async with limited.admit(caller(terms), Demand("Generate", 10), Account()):
        with pytest.raises(QuotaExceededError):
            async with limited.admit(caller(terms), Demand("Generate", 10), Account()):
                pass
        limited.precheck(caller(terms))
