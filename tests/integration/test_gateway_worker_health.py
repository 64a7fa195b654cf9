"""Workers that hang, stall, drain, fail or have no room, as a gateway sees them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from gateway.config import FailoverConfig, RoutingConfig, WorkerLinkConfig
from gateway.dispatch.link import WorkerLink
from radixgate.v1 import inference_pb2, worker_pb2
from tests.fakes.cable import Cable
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import FOUR, IDS, Refusal, Stack, gateway, until

Call = grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]
LONG: dict[str, Any] = {"tokens": {"token_ids": IDS}, "sampling": {"max_new_tokens": 40}}
STAYS = FailoverConfig(max_moves=0, wait_for_worker_s=0)
PATIENT = FailoverConfig(wait_for_worker_s=60.0, backoff_initial_s=0.005, backoff_max_s=0.02)
INTERNAL = worker_pb2.SequenceError(code=worker_pb2.SEQUENCE_ERROR_CODE_INTERNAL, message="as the test wants it")
FULL = worker_pb2.SequenceError(code=worker_pb2.SEQUENCE_ERROR_CODE_OVERLOADED, message="the line is full")


def link_config(**changes: float) -> WorkerLinkConfig:
    return WorkerLinkConfig(backoff_initial_s=0.02, backoff_max_s=0.2, **changes)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def reporting(*workers: FakeWorker) -> AsyncIterator[None]:
    """The workers report regularly, as real ones do."""

    async def report() -> None:
        while True:
            for worker in workers:
                worker.report()
            await asyncio.sleep(0.02)

    task = asyncio.create_task(report())
    try:
        yield
    finally:
        task.cancel()


def link_to(stack: Stack, worker: FakeWorker) -> WorkerLink:
    return next(link for link in stack.app.serving.fleet.links() if link.address == worker.address)


async def rest(call: Call) -> list[int]:
    token_ids: list[int] = []
    while (message := await call.read()) is not grpc.aio.EOF:
        token_ids += message.token_ids  # type: ignore[attr-defined]
    return token_ids


# ------------------------------------------------------------------------------------------------------- silence


async def test_streams_of_a_worker_that_hangs_without_a_word_go_on_elsewhere(redis_url: str) -> None:
    # Nobody else would notice: pings are too rare.
    config = link_config(silence_s=0.5, keepalive_time_s=60.0, keepalive_timeout_s=60.0)
    async with FakeWorker("a") as a, FakeWorker("b") as b, reporting(a, b):
        a.hold()
        b.hold()
        async with (
            Cable(a.address) as to_a,
            Cable(b.address) as to_b,
            gateway(redis_url, [to_a.address, to_b.address], worker_link=config) as stack,
        ):
            await until(lambda: stack.observer.workers.total() == 2)
            call = stack.call(**LONG)
            await until(lambda: a.num_running + b.num_running == 1)
            first, cable, second = (a, to_a, b) if a.num_running else (b, to_b, a)
            first.step(5)
            await until(lambda: bool(stack.observer.first_messages))
            cable.pull()
            second.go()
            assert await asyncio.wait_for(rest(call), 20) == completion(IDS, 40)
            assert stack.observer.moves == [("silent", "continued")]
            assert len(second.submits) == 1


async def test_a_worker_of_a_kind_that_does_not_report_may_be_quiet(redis_url: str, worker: FakeWorker) -> None:
    worker.hold()
    async with gateway(redis_url, [worker], worker_link=link_config(silence_s=0.1)) as stack:
        call = stack.call(**LONG)
        await worker.until(lambda: worker.num_running == 1)
        worker.step()
        await call.read()
        await asyncio.sleep(0.5)  # nothing is to happen for longer than a silence
        worker.go()
        assert len(await rest(call)) == 39
        assert stack.observer.moves == []


async def test_a_gateway_that_was_held_up_itself_takes_nobody_for_silent(redis_url: str) -> None:
    config = link_config(silence_s=0.4, stall_s=0.4)
    async with FakeWorker("a") as a, FakeWorker("b") as b, reporting(a, b):
        async with gateway(redis_url, [a, b], worker_link=config) as stack:
            a.hold()
            b.hold()
            call = stack.call(**LONG)
            await until(lambda: a.num_running + b.num_running == 1)
            for worker in (a, b):
                worker.step(5)
            await until(lambda: bool(stack.observer.first_messages))
            time.sleep(1.5)  # noqa: ASYNC251 - as whoever holds the loop does
            for worker in (a, b):
                worker.go()
            assert await rest(call) == completion(IDS, 40)
            assert (stack.observer.moves, stack.observer.stalls) == ([], [])
            assert all(link.connection == 1 for link in stack.app.serving.fleet.links())


# --------------------------------------------------------------------------------------------------------- stalls


async def test_streams_of_a_worker_where_nothing_moves_go_on_elsewhere_until_it_moves_again(redis_url: str) -> None:
    async with FakeWorker("a") as a, FakeWorker("b") as b:
        a.hold()
        b.hold()
        async with gateway(redis_url, [a, b]) as stack:
            call = stack.call(**LONG)
            await until(lambda: a.num_running + b.num_running == 1)
            first, second = (a, b) if a.num_running else (b, a)
            first.step(5)
            await until(lambda: bool(stack.observer.first_messages))
            first.report(stalled_s=61.0)
            await second.until(lambda: second.num_running == 1)
            first.go()  # whatever it computed late is nobody's any more
            second.go()
            assert await rest(call) == completion(IDS, 40)
            assert stack.observer.moves == [("stalled", "continued")]
            assert stack.observer.stalls == [first.address]
            await first.until(lambda: first.cancels == [first.submits[0].sequence_id])
            for _ in range(4):
                await stack.generate(**FOUR)
            assert len(first.submits) == 1
            first.report(stalled_s=0.0)
            await until(lambda: link_to(stack, first).takes_requests)
            for _ in range(4):
                await stack.generate(**FOUR)
            assert len(first.submits) > 1


async def test_a_request_waits_for_a_worker_that_has_stalled(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], failover=PATIENT) as stack:
        worker.report(stalled_s=61.0)
        await until(lambda: not link_to(stack, worker).takes_requests)
        asked = asyncio.create_task(stack.generate(**FOUR))
        await until(lambda: len(stack.app.fronts.calls.in_flight) == 1)
        worker.report(stalled_s=0.0)
        assert (await asyncio.wait_for(asked, 20)).token_ids == completion(IDS, 4)


async def test_streams_that_get_nothing_although_their_worker_says_that_it_runs_go_on_elsewhere(
    redis_url: str,
) -> None:
    async with FakeWorker("a") as a, FakeWorker("b") as b, reporting(a, b):
        a.hold()
        b.hold()
        async with gateway(redis_url, [a, b], worker_link=link_config(stall_s=0.5)) as stack:
            call = stack.call(**LONG)
            await until(lambda: a.num_running + b.num_running == 1)
            first, second = (a, b) if a.num_running else (b, a)
            second.go()
            first.step(5)
            assert await asyncio.wait_for(rest(call), 20) == completion(IDS, 40)
            assert stack.observer.moves == [("stalled", "continued")]


# --------------------------------------------------------------------------------------------------------- drains


async def test_a_worker_that_drains_gets_nothing_new_and_ends_what_it_has(redis_url: str) -> None:
    async with FakeWorker("a") as a, FakeWorker("b") as b, gateway(redis_url, [a, b]) as stack:
        a.hold()
        b.hold()
        call = stack.call(**LONG)
        await until(lambda: a.num_running + b.num_running == 1)
        leaving, staying = (a, b) if a.num_running else (b, a)
        leaving.report(draining=True)
        await until(lambda: not link_to(stack, leaving).takes_requests)
        staying.go()
        for _ in range(4):
            assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)
        leaving.go()
        assert await rest(call) == completion(IDS, 40)
        assert (len(leaving.submits), stack.observer.moves) == (1, [])


# -------------------------------------------------------------------------------------------------------- breakers


async def test_a_worker_that_fails_again_and_again_is_left_alone_and_then_asked_once(redis_url: str) -> None:
    config = link_config(breaker_failures=3, breaker_open_s=0.4)
    async with FakeWorker("a") as worker:
        async with gateway(redis_url, [worker], worker_link=config, failover=STAYS) as stack:
            worker.failure = INTERNAL
            for _ in range(3):
                assert (await stack.refused(**FOUR)).code is grpc.StatusCode.INTERNAL
            left_alone = await stack.refused(**FOUR)
            assert (left_alone.code, left_alone.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_WORKER")
            assert left_alone.retry_delay_s is not None
            assert 0 < left_alone.retry_delay_s <= 0.4
            assert len(worker.submits) == 3
            await until(lambda: link_to(stack, worker).takes_requests)
            assert (await stack.refused(**FOUR)).code is grpc.StatusCode.INTERNAL  # the one that sees
            assert (await stack.refused(**FOUR)).reason == "NO_WORKER"
            worker.failure = None
            await until(lambda: link_to(stack, worker).takes_requests)
            for _ in range(3):
                assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)
            states = [state for _, state in stack.observer.breakers]
            assert states == ["open", "half_open", "open", "half_open", "closed"]


async def test_requests_that_wait_are_served_when_a_breaker_lets_one_through(redis_url: str) -> None:
    config = link_config(breaker_failures=1, breaker_open_s=0.3)
    async with FakeWorker("a") as worker:
        async with gateway(redis_url, [worker], worker_link=config, failover=PATIENT) as stack:
            worker.failure = INTERNAL
            assert (await stack.refused(**FOUR)).code is grpc.StatusCode.INTERNAL
            worker.failure = None
            asked = [stack.generate(**FOUR) for _ in range(5)]
            for done in await asyncio.wait_for(asyncio.gather(*asked), 20):
                assert done.token_ids == completion(IDS, 4)


async def test_who_waits_is_let_through_when_the_one_that_was_to_see_has_gone(redis_url: str) -> None:
    config = link_config(breaker_failures=1, breaker_open_s=0.1)
    async with FakeWorker("a") as worker:
        async with gateway(redis_url, [worker], worker_link=config, failover=PATIENT) as stack:
            worker.failure = INTERNAL
            assert (await stack.refused(**FOUR)).code is grpc.StatusCode.INTERNAL
            worker.failure = None
            worker.hold()
            await until(lambda: link_to(stack, worker).takes_requests)
            sees = stack.call(**FOUR)
            await until(lambda: worker.num_running == 1)
            waits = asyncio.create_task(stack.generate(**FOUR))
            await until(lambda: len(stack.app.fronts.calls.in_flight) == 2)
            sees.cancel()
            worker.go()
            # Long before its patience of a minute ends.
            assert (await asyncio.wait_for(waits, 20)).token_ids == completion(IDS, 4)


async def test_malformed_requests_and_full_lines_never_open_a_breaker(redis_url: str) -> None:
    config = link_config(breaker_failures=1)
    bad = worker_pb2.SequenceError(code=worker_pb2.SEQUENCE_ERROR_CODE_INVALID_ARGUMENT, field="sampling.regex")
    async with FakeWorker("a") as worker:
        async with gateway(redis_url, [worker], worker_link=config, failover=STAYS) as stack:
            for failure in (bad, FULL):
                worker.failure = failure
                for _ in range(20):
                    await stack.refused(**FOUR)
            assert len(worker.submits) == 40
            assert stack.observer.breakers == []


# -------------------------------------------------------------------------------------------------------- overload


async def test_who_finds_all_lines_full_is_told_when_to_come_again(redis_url: str) -> None:
    async with FakeWorker("a") as a, FakeWorker("b") as b, gateway(redis_url, [a, b]) as stack:
        a.failure = b.failure = FULL
        refused = await stack.refused(**FOUR)
        assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "WORKER_OVERLOADED")
        assert refused.retry_delay_s is not None
        assert 0.5 <= refused.retry_delay_s <= 1.5
        assert len(a.submits) == len(b.submits) == 1
        assert stack.observer.shed == ["overloaded"]


async def test_the_time_to_come_again_is_what_workers_say_that_they_are_busy(redis_url: str) -> None:
    async with FakeWorker("a") as worker, gateway(redis_url, [worker]) as stack:
        worker.failure = FULL
        worker.report(pending_tokens=2000, prefill_tokens_per_s=100.0)
        await until(lambda: link_to(stack, worker).expected_wait_s == 20.0)
        refused = await stack.refused(**FOUR)
        assert refused.retry_delay_s is not None
        assert 10.0 <= refused.retry_delay_s <= 30.0


async def test_a_request_that_would_wait_too_long_everywhere_is_refused_at_once(redis_url: str) -> None:
    routing = RoutingConfig(max_expected_wait_s=5.0)
    async with FakeWorker("a") as a, FakeWorker("b") as b, gateway(redis_url, [a, b], routing=routing) as stack:
        a.report(pending_tokens=1000, prefill_tokens_per_s=100.0)
        await until(lambda: link_to(stack, a).expected_wait_s == 10.0)
        for _ in range(3):
            assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)
        assert len(b.submits) == 3
        b.report(pending_tokens=2000, prefill_tokens_per_s=100.0)
        await until(lambda: link_to(stack, b).expected_wait_s == 20.0)
        refused = await stack.refused(**FOUR)
        assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
        assert refused.retry_delay_s == pytest.approx(5.0)
        assert stack.observer.shed == ["expected_wait"]
        assert (len(a.submits), len(b.submits)) == (0, 3)


async def test_overload_of_one_worker_is_no_reason_to_refuse(redis_url: str) -> None:
    async with FakeWorker("a") as a, FakeWorker("b") as b, gateway(redis_url, [a, b]) as stack:
        a.failure = FULL
        for _ in range(4):
            assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)
        assert stack.observer.shed == []


# ---------------------------------------------------------------------------------------------------- the last word


async def test_where_moves_are_off_a_full_line_is_told_with_the_time_to_come_again(redis_url: str) -> None:
    async with FakeWorker("a") as worker, gateway(redis_url, [worker], failover=STAYS) as stack:
        worker.failure = FULL
        refused: Refusal = await stack.refused(**FOUR)
        assert (refused.reason, refused.message) == ("WORKER_OVERLOADED", "the line is full")
        assert refused.retry_delay_s is not None
