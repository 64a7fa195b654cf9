"""Requests that come while no worker is there wait for one, and not for ever."""

import asyncio

import grpc

from gateway.config import FailoverConfig
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import FOUR, IDS, gateway, until

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
PATIENT = FailoverConfig(wait_for_worker_s=60.0)


async def test_a_request_waits_for_the_first_worker(redis_url: str) -> None:
    worker = await FakeWorker().start()
    address = worker.address
    await worker.kill()
    async with gateway(redis_url, [address], failover=PATIENT) as stack:
        asked = [asyncio.create_task(stack.generate(**FOUR)) for _ in range(3)]
        await until(lambda: len(stack.app.fronts.calls.in_flight) == 3)
        await worker.start(address)
        assert {tuple((await each).token_ids) for each in asked} == {tuple(completion(IDS, 4))}
        assert stack.observer.waits == [True] * 3
        await worker.kill()


async def test_who_waits_for_a_worker_can_be_cancelled_and_runs_into_its_deadline(redis_url: str) -> None:
    async with gateway(redis_url, ["127.0.0.1:1"], failover=PATIENT) as stack:
        refused = await stack.refused(**FOUR, timeout=0.3)
        assert refused.code is grpc.StatusCode.DEADLINE_EXCEEDED
        call = stack.call(**FOUR)
        await until(lambda: len(stack.app.fronts.calls.in_flight) == 1)
        call.cancel()
        await until(lambda: len(stack.app.fronts.calls.in_flight) == 0)
        await until(lambda: stack.observer.waits == [False] * 2)


async def test_patience_ends_with_the_time_until_a_worker_may_be_there(redis_url: str) -> None:
    config = FailoverConfig(wait_for_worker_s=0.1)
    async with gateway(redis_url, ["127.0.0.1:1"], failover=config) as stack:
        refused = await stack.refused(**FOUR)
        assert (refused.code, refused.reason) == (UNAVAILABLE, "NO_WORKER")
        assert refused.retry_delay_s is not None
        assert stack.observer.waits == [False]
