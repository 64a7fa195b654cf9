"""Repeated requests on a real Redis: one thing made, one answer, however they come."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import redis

from gateway.config import RedisConfig
from gateway.errors import AlreadyExistsError, InvalidRequestError, NotFoundError, UnavailableError
from gateway.identity.idempotency import KEPT_S, Attempt, Idempotency
from gateway.identity.reach import StoreReach
from gateway.identity.redis_store import connect
from gateway.observer import NullObserver
from radixgate.v1 import admin_pb2


@dataclass
class Maker:
    """Makes numbered tenants, when it is let."""

    attempts: list[Attempt] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def make(self, attempt: Attempt) -> admin_pb2.CreateTenantResponse:
        self.attempts.append(attempt)
        number = len(self.attempts)
        self.started.set()
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        return admin_pb2.CreateTenantResponse(tenant=admin_pb2.Tenant(display_name=str(number)))


@pytest.fixture
async def gateways(redis_url: str) -> AsyncIterator[list[Idempotency]]:
    clients = [connect(RedisConfig(url=redis_url)) for _ in range(2)]
    yield [Idempotency(client, StoreReach(client, 5.0, NullObserver())) for client in clients]
    for client in clients:
        await client.aclose()


@pytest.fixture
def maker() -> Maker:
    return Maker()


def request(request_id: str, tenant_id: str = "acme") -> admin_pb2.CreateTenantRequest:
    return admin_pb2.CreateTenantRequest(tenant_id=tenant_id, request_id=request_id)


async def name(gateway: Idempotency, maker: Maker, wanted: admin_pb2.CreateTenantRequest, method: str = "Make") -> str:
    answer, _ = await gateway.attempt(method, wanted, maker.make)
    assert isinstance(answer, admin_pb2.CreateTenantResponse)
    return answer.tenant.display_name


async def test_the_same_request_gets_the_first_answer_on_every_gateway(
    gateways: list[Idempotency], maker: Maker
) -> None:
    assert [await name(each, maker, request("one")) for each in gateways * 2] == ["1"] * 4
    assert await name(gateways[0], maker, request("two")) == "2"
    assert await name(gateways[0], maker, request("one"), method="MakeOther") == "3"


async def test_without_a_request_id_every_call_makes_something(gateways: list[Idempotency], maker: Maker) -> None:
    assert [await name(gateways[0], maker, request("")) for _ in range(3)] == ["1", "2", "3"]
    assert len({attempt.salt for attempt in maker.attempts}) == 3


async def test_another_content_under_the_same_id_is_refused(gateways: list[Idempotency], maker: Maker) -> None:
    await name(gateways[0], maker, request("one"))
    with pytest.raises(AlreadyExistsError) as refusal:
        await name(gateways[1], maker, request("one", "globex"))
    assert refusal.value.reason == "REQUEST_ID_REUSED"
    assert len(maker.attempts) == 1


async def test_repetitions_at_the_same_time_make_one_thing(gateways: list[Idempotency], maker: Maker) -> None:
    maker.gate.clear()
    calls = [asyncio.create_task(name(gateways[i % 2], maker, request("one"))) for i in range(20)]
    await maker.started.wait()
    maker.gate.set()
    assert await asyncio.gather(*calls) == ["1"] * 20


async def test_a_refusal_is_not_remembered(gateways: list[Idempotency], maker: Maker) -> None:
    maker.failures.append(NotFoundError("tenant", "acme"))
    with pytest.raises(NotFoundError):
        await name(gateways[0], maker, request("one"))
    assert await name(gateways[1], maker, request("one")) == "2"
    assert await name(gateways[1], maker, request("one")) == "2"


@pytest.mark.parametrize("failure", [UnavailableError("away"), OSError("gone")], ids=["unavailable", "unexpected"])
async def test_after_an_unknown_outcome_the_next_attempt_has_the_same_salt_and_time(
    gateways: list[Idempotency], maker: Maker, failure: BaseException
) -> None:
    maker.failures.append(failure)
    with pytest.raises(type(failure)):
        await name(gateways[0], maker, request("one"))
    assert await name(gateways[1], maker, request("one")) == "2"
    first, second = maker.attempts
    assert first == second
    assert first.mark == second.mark


async def test_what_has_begun_goes_on_when_its_caller_has_gone(gateways: list[Idempotency], maker: Maker) -> None:
    maker.gate.clear()
    call = asyncio.create_task(name(gateways[0], maker, request("one")))
    await maker.started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    maker.gate.set()
    await gateways[0].close()
    assert await name(gateways[1], maker, request("one")) == "1"
    assert len(maker.attempts) == 1


async def test_what_takes_longer_than_a_lease_is_still_made_once(redis_url: str, maker: Maker) -> None:
    maker.gate.clear()
    client = connect(RedisConfig(url=redis_url))
    gateways = [Idempotency(client, StoreReach(client, 5.0, NullObserver()), lease_s=0.6) for _ in range(2)]
    calls = [asyncio.create_task(name(each, maker, request("one"))) for each in gateways]
    done, _ = await asyncio.wait(calls, timeout=2.0)  # three leases
    assert not done
    maker.gate.set()
    assert await asyncio.gather(*calls) == ["1", "1"]
    assert len(maker.attempts) == 1
    await client.aclose()


async def test_a_gateway_that_stops_does_not_wait_for_what_another_one_makes(
    gateways: list[Idempotency], maker: Maker
) -> None:
    maker.gate.clear()
    making = asyncio.create_task(name(gateways[0], maker, request("one")))
    await maker.started.wait()
    waiting = asyncio.create_task(name(gateways[1], maker, request("one")))
    await asyncio.wait([waiting], timeout=0.1)
    async with asyncio.timeout(5):
        await gateways[1].close()
    with pytest.raises(UnavailableError):
        await waiting
    maker.gate.set()
    assert await making == "1"


@pytest.mark.parametrize("request_id", ["x" * 129, "a\nb", "\x00"])
async def test_a_request_id_has_a_form(gateways: list[Idempotency], maker: Maker, request_id: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        await name(gateways[0], maker, request(request_id))
    assert [violation.field for violation in refusal.value.violations] == ["request_id"]
    assert not maker.attempts
    await name(gateways[0], maker, request("ü" * 128))


async def test_a_request_is_forgotten_after_a_day_with_its_salt(
    gateways: list[Idempotency], maker: Maker, redis_url: str
) -> None:
    await name(gateways[0], maker, request("one"))
    maker.failures.append(UnavailableError("away"))
    with pytest.raises(UnavailableError):
        await name(gateways[0], maker, request("two"))
    with redis.Redis.from_url(redis_url) as client:
        lives = [client.ttl(key) for key in client.scan_iter("*:request:*")]
    assert len(lives) == 2
    assert all(0 < life <= KEPT_S for life in lives)
