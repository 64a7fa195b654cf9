"""Streams that outlive their worker: what a client sees is what an undisturbed run would have shown."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from gateway.config import FailoverConfig, ServerConfig
from radixgate.v1 import inference_pb2, worker_pb2
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import FOUR, IDS, Completion, Refusal, Stack, gateway, until

Call = grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
PATIENT = FailoverConfig(wait_for_worker_s=60.0, backoff_initial_s=0.005, backoff_max_s=0.02)
LONG: dict[str, Any] = {"tokens": {"token_ids": IDS}, "sampling": {"max_new_tokens": 40}}


@contextlib.asynccontextmanager
async def fleet(redis_url: str, num_workers: int = 2, **changes: Any) -> AsyncIterator[tuple[Stack, list[FakeWorker]]]:
    """A gateway over workers that make a step only when they are told to."""
    async with contextlib.AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(FakeWorker(f"w{i}")) for i in range(num_workers)]
        for worker in workers:
            worker.hold()
        yield await stack.enter_async_context(gateway(redis_url, workers, **changes)), workers


async def holder(workers: Sequence[FakeWorker], num_running: int = 1) -> FakeWorker:
    """Wait until one of them has it, and return that one."""
    await until(lambda: any(worker.num_running == num_running for worker in workers))
    return next(worker for worker in workers if worker.num_running == num_running)


async def another(workers: Sequence[FakeWorker], than: FakeWorker, num_running: int = 1) -> FakeWorker:
    return await holder([worker for worker in workers if worker is not than], num_running)


async def begun(call: Call, worker: FakeWorker, steps: int) -> Completion:
    """Let a worker make steps, and read what comes of them."""
    done = Completion()
    for _ in range(steps):
        worker.step()
        done.messages.append(await call.read())  # type: ignore[arg-type]
    return done


async def rest(call: Call, done: Completion | None = None) -> Completion:
    done = done or Completion()
    while (message := await call.read()) is not grpc.aio.EOF:
        done.messages.append(message)  # type: ignore[arg-type]
    return done


async def refusal(call: Call) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await rest(call)
    return Refusal.of(failure.value)


def texts(token_ids: Sequence[int]) -> str:
    return "".join(f" {token_id}" for token_id in token_ids)


# --------------------------------------------------------------------------------------------------- what goes on


async def test_a_stream_whose_worker_is_killed_goes_on_as_if_nothing_had_happened(redis_url: str) -> None:
    async with fleet(redis_url) as (stack, workers):
        call = stack.call(**LONG)
        first = await holder(workers)
        done = await begun(call, first, 10)
        await first.kill()
        second = await another(workers, first)
        second.go()
        done = await rest(call, done)
        assert done.token_ids == completion(IDS, 40)
        assert done.text == texts(done.token_ids)
        assert [message.finish_reason for message in done.messages[:-1]] == [0] * (len(done.messages) - 1)
        assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (len(IDS), 40)
        assert (done.usage.cached.device, done.usage.computed_prompt_tokens) == (0, len(IDS))
        assert stack.observer.moves == [("lost", "continued")]
        assert [admission[3:] for admission in stack.observer.admissions] == [(len(IDS), 0, 0, 0)]
        assert stack.observer.open_streams.total() == 0


async def test_the_next_worker_gets_the_same_request_with_what_it_has_by_then_and_the_time_that_is_left(
    redis_url: str,
) -> None:
    async with fleet(redis_url) as (stack, workers):
        call = stack.call(**LONG, timeout=30.0)
        first = await holder(workers)
        await begun(call, first, 3)
        await first.kill()
        second = await another(workers, first)
        before, after = first.submits[0], second.submits[0]
        assert [(each.index, list(each.token_ids)) for each in after.continued] == [(0, completion(IDS, 3))]
        assert not before.continued
        assert after.sampling == before.sampling
        assert after.prompt == before.prompt
        assert (after.tenant, after.request_id, after.traceparent) == (
            before.tenant,
            before.request_id,
            before.traceparent,
        )
        assert 0 < after.timeout_ms <= before.timeout_ms
        call.cancel()


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (worker_pb2.SEQUENCE_ERROR_CODE_INTERNAL, "failed"),
        (worker_pb2.SEQUENCE_ERROR_CODE_SHUTTING_DOWN, "shutting_down"),
    ],
)
async def test_a_worker_that_fails_or_leaves_gives_its_streams_away(
    redis_url: str, code: "worker_pb2.SequenceErrorCode.ValueType", cause: str
) -> None:
    async with fleet(redis_url) as (stack, workers):
        call = stack.call(**LONG)
        first = await holder(workers)
        done = await begun(call, first, 5)
        first.end_all(code)
        (await another(workers, first)).go()
        assert (await rest(call, done)).token_ids == completion(IDS, 40)
        assert stack.observer.moves == [(cause, "continued")]


@pytest.mark.parametrize(
    "code",
    [
        worker_pb2.SEQUENCE_ERROR_CODE_INTERNAL,
        worker_pb2.SEQUENCE_ERROR_CODE_SHUTTING_DOWN,
        worker_pb2.SEQUENCE_ERROR_CODE_OVERLOADED,
    ],
)
async def test_before_the_first_token_a_request_begins_again_elsewhere(
    redis_url: str, code: "worker_pb2.SequenceErrorCode.ValueType"
) -> None:
    async with FakeWorker("bad") as bad, FakeWorker("good") as good, gateway(redis_url, [bad, good]) as stack:
        bad.failure = worker_pb2.SequenceError(code=code, message="as the test wants it")
        for _ in range(3):
            assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)
        assert len(good.submits) == 3
        assert not any(submit.continued for submit in good.submits)
        assert {outcome for _, outcome in stack.observer.moves} == {"begun_again"}
        assert len(stack.observer.moves) == len(bad.submits) > 0


async def test_of_several_completions_those_go_on_that_have_not_ended(redis_url: str) -> None:
    each = [completion(IDS, 12, index) for index in range(3)]
    stop = next(token for token in each[0][:5] if token not in each[1] + each[2])
    ends = each[0].index(stop) + 1
    sampling = {"max_new_tokens": 12, "n": 3, "stop_token_ids": [stop]}
    async with fleet(redis_url) as (stack, workers):
        call = stack.call(tokens={"token_ids": IDS}, sampling=sampling)
        first = await holder(workers, 3)
        first.step(6)
        await until(lambda: first.num_running == 2)
        done = Completion()
        while len(done.token_ids) < ends + 12:
            done.messages.append(await call.read())  # type: ignore[arg-type]
        await first.kill()
        second = await another(workers, first, 2)
        assert [one.index for one in second.submits[0].continued] == [1, 2]
        second.go()
        messages = (await rest(call, done)).messages
        expected = {0: each[0][:ends], 1: each[1], 2: each[2]}
        for index, token_ids in expected.items():
            found = [message for message in messages if message.index == index]
            assert [token for message in found for token in message.token_ids] == token_ids
            assert sum(message.finish_reason != 0 for message in found) == 1
        assert messages[-1].usage.completion_tokens == sum(map(len, expected.values()))


async def test_where_one_completion_has_begun_and_another_has_not_nothing_is_told_twice(redis_url: str) -> None:
    async with fleet(redis_url) as (stack, workers):
        for worker in workers:
            worker.late, worker.logprobs = 5, 2
        sampling = {"max_new_tokens": 8, "n": 2, "logprobs": 2, "prompt_logprobs": 0}
        call = stack.call(tokens={"token_ids": IDS}, sampling=sampling)
        first = await holder(workers, 2)
        done = await begun(call, first, 3)
        await first.kill()
        second = await another(workers, first, 2)
        assert not second.submits[0].continued
        second.go()
        done = await rest(call, done)
        for index in range(2):
            found = [message for message in done.messages if message.index == index]
            assert [token for message in found for token in message.token_ids] == completion(IDS, 8, index)
            assert "".join(message.text for message in found) == texts(completion(IDS, 8, index))
            assert sum(len(message.logprobs) for message in found) == 8
        assert sum(len(message.prompt_logprobs) for message in done.messages) == len(IDS) - 1
        assert stack.observer.moves == [("lost", "begun_again")]
        assert done.usage.completion_tokens == 16


async def test_log_probabilities_come_once_each(redis_url: str) -> None:
    async with fleet(redis_url) as (stack, workers):
        for worker in workers:
            worker.logprobs = 3
        sampling = {"max_new_tokens": 10, "logprobs": 3, "prompt_logprobs": 1}
        call = stack.call(tokens={"token_ids": IDS}, sampling=sampling)
        first = await holder(workers)
        done = await begun(call, first, 4)
        await first.kill()
        (await another(workers, first)).go()
        done = await rest(call, done)
        assert done.token_ids == completion(IDS, 10)
        assert sum(len(message.logprobs) for message in done.messages) == 10
        assert [entry.logprob for message in done.messages for entry in message.prompt_logprobs] == [-1.0, -2.0]


async def test_a_stream_may_lose_one_worker_after_the_other(redis_url: str) -> None:
    async with fleet(redis_url, 4) as (stack, workers):
        call = stack.call(**LONG)
        done, left = Completion(), list(workers)
        for _ in range(3):
            worker = await holder(left)
            done.messages += (await begun(call, worker, 4)).messages
            left.remove(worker)
            await worker.kill()
        (await holder(left)).go()
        assert (await rest(call, done)).token_ids == completion(IDS, 40)
        assert stack.observer.moves == [("lost", "continued")] * 3


async def test_workers_that_leave_in_order_may_be_more_than_the_moves_that_there_are(redis_url: str) -> None:
    config = FailoverConfig(max_moves=1, wait_for_worker_s=60.0, backoff_initial_s=0.005)
    async with fleet(redis_url, 4, failover=config) as (stack, workers):
        call = stack.call(**LONG)
        done, left = Completion(), list(workers)
        for _ in range(3):
            worker = await holder(left)
            done.messages += (await begun(call, worker, 4)).messages
            left.remove(worker)
            worker.end_all(worker_pb2.SEQUENCE_ERROR_CODE_SHUTTING_DOWN)
        (await holder(left)).go()
        assert (await rest(call, done)).token_ids == completion(IDS, 40)


async def test_all_streams_of_a_worker_find_places_elsewhere(redis_url: str) -> None:
    async with fleet(redis_url, 4) as (stack, workers):
        calls = [stack.call(**LONG) for _ in range(40)]
        await until(lambda: sum(worker.num_running for worker in workers) == 40)
        for worker in workers:
            worker.step(10)
        done = [Completion([await call.read()]) for call in calls]  # type: ignore[list-item]
        killed = max(workers, key=lambda worker: worker.num_running)
        num_moved = killed.num_running
        assert num_moved >= 10
        await killed.kill()
        for worker in workers:
            worker.go()
        ended = await asyncio.gather(*(rest(call, each) for call, each in zip(calls, done, strict=True)))
        assert {tuple(each.token_ids) for each in ended} == {tuple(completion(IDS, 40))}
        assert {each.usage.completion_tokens for each in ended} == {40}
        assert len(stack.observer.moves) == num_moved
        await until(lambda: stack.observer.open_streams.total() == 0)
        assert all(link.in_flight == 0 for link in stack.app.serving.fleet.links())


async def test_a_client_that_does_not_read_meanwhile_finds_everything_later(redis_url: str) -> None:
    async with fleet(redis_url) as (stack, workers):
        call = stack.call(**LONG)
        first = await holder(workers)
        first.step(10)
        await until(lambda: len(stack.observer.first_messages + stack.observer.next_messages) > 0)
        await first.kill()
        second = await another(workers, first)
        second.go()
        await second.until(lambda: second.num_running == 0)
        assert (await rest(call)).token_ids == completion(IDS, 40)


async def test_the_only_worker_takes_its_streams_up_again_when_it_is_back(redis_url: str) -> None:
    async with fleet(redis_url, 1, failover=PATIENT) as (stack, [worker]):
        call = stack.call(**LONG)
        await holder([worker])
        done = await begun(call, worker, 7)
        address = worker.address
        await worker.kill()
        await until(lambda: not stack.app.ready)
        worker.go()
        await worker.start(address)
        assert (await rest(call, done)).token_ids == completion(IDS, 40)
        assert stack.observer.moves == [("lost", "continued")]
        assert stack.observer.waits == [True]


async def test_a_move_waits_for_room_where_all_lines_are_full(redis_url: str) -> None:
    full = worker_pb2.SequenceError(code=worker_pb2.SEQUENCE_ERROR_CODE_OVERLOADED, message="full")
    async with fleet(redis_url, failover=PATIENT) as (stack, workers):
        call = stack.call(**LONG)
        first = await holder(workers)
        second = next(worker for worker in workers if worker is not first)
        done = await begun(call, first, 5)
        second.failure = full
        await first.kill()
        await until(lambda: len(second.submits) >= 6)  # more often than the moves that there are
        second.failure = None
        second.go()
        assert (await rest(call, done)).token_ids == completion(IDS, 40)


# ------------------------------------------------------------------------------------------------- what does not


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (worker_pb2.SEQUENCE_ERROR_CODE_INVALID_ARGUMENT, grpc.StatusCode.INVALID_ARGUMENT),
        (worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND, grpc.StatusCode.NOT_FOUND),
        (worker_pb2.SEQUENCE_ERROR_CODE_DEADLINE_EXCEEDED, grpc.StatusCode.DEADLINE_EXCEEDED),
        (worker_pb2.SEQUENCE_ERROR_CODE_CANCELLED, grpc.StatusCode.CANCELLED),
    ],
)
async def test_what_another_worker_would_say_too_is_not_tried_again_and_counts_against_nobody(
    redis_url: str, code: "worker_pb2.SequenceErrorCode.ValueType", status: grpc.StatusCode
) -> None:
    async with FakeWorker("a") as a, FakeWorker("b") as b, gateway(redis_url, [a, b]) as stack:
        for worker in (a, b):
            worker.failure = worker_pb2.SequenceError(code=code, message="why", field="sampling.top_k")
        for _ in range(20):
            assert (await stack.refused(**FOUR)).code is status
        assert len(a.submits) + len(b.submits) == 20
        assert stack.observer.moves == stack.observer.breakers == []
        a.failure = b.failure = None
        assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)


async def test_a_stream_that_no_other_worker_can_take_says_so(redis_url: str) -> None:
    async with fleet(redis_url, 1) as (stack, [worker]):
        call = stack.call(**LONG)
        await holder([worker])
        await begun(call, worker, 7)
        await worker.kill()
        lost = await refusal(call)
        assert (lost.code, lost.reason) == (UNAVAILABLE, "STREAM_LOST")
        assert lost.metadata["cause"] == "lost"
        assert lost.metadata["why"] == "no_worker"
        assert lost.metadata["worker"] == worker.address
        assert lost.metadata["sentTokens"] == "7"
        assert stack.observer.refused_moves == [("lost", "no_worker")]


async def test_a_stream_that_is_too_long_for_the_others_says_so(redis_url: str) -> None:
    async with FakeWorker("large") as large, FakeWorker("small", max_sequence_tokens=20) as small:
        large.hold()
        async with gateway(redis_url, [large, small]) as stack:
            call = stack.call(**LONG)
            await holder([large])
            await begun(call, large, 2)
            await large.kill()
            assert (await refusal(call)).metadata["why"] == "too_long"


async def test_a_stream_whose_adapter_is_another_one_elsewhere_says_so(redis_url: str) -> None:
    async with fleet(redis_url) as (stack, workers):
        for worker, revision in zip(workers, ("r1", "r2"), strict=True):
            worker.tell_adapters(worker_pb2.Adapter(name="poet", revision=revision))
        links = stack.app.serving.fleet.links()
        await until(lambda: all(link.adapters.names("acme") for link in links))
        call = stack.call(**LONG, adapter="poet")
        first = await holder(workers)
        await begun(call, first, 2)
        await first.kill()
        assert (await refusal(call)).metadata["why"] == "adapter"


async def test_a_request_whose_adapter_is_another_one_elsewhere_takes_that_one_while_nothing_was_sent(
    redis_url: str,
) -> None:
    async with fleet(redis_url) as (stack, workers):
        for worker, revision in zip(workers, ("r1", "r2"), strict=True):
            worker.tell_adapters(worker_pb2.Adapter(name="poet", revision=revision))
        links = stack.app.serving.fleet.links()
        await until(lambda: all(link.adapters.names("acme") for link in links))
        call = stack.call(**LONG, adapter="poet")
        first = await holder(workers)
        await first.kill()
        second = await another(workers, first)
        assert second.submits[0].adapter_revision != first.submits[0].adapter_revision
        second.go()
        assert (await rest(call)).token_ids == completion(IDS, 40)


async def test_a_worker_that_cannot_go_on_is_no_mistake_of_the_client(redis_url: str) -> None:
    async with fleet(redis_url) as (stack, workers):
        call = stack.call(**LONG)
        first = await holder(workers)
        for worker in workers:
            worker.refuses_continued = True
        await begun(call, first, 2)
        await first.kill()
        lost = await refusal(call)
        assert (lost.code, lost.reason, lost.metadata["why"]) == (UNAVAILABLE, "STREAM_LOST", "refused")


async def test_moves_are_bounded(redis_url: str) -> None:
    config = FailoverConfig(max_moves=1, wait_for_worker_s=0, backoff_initial_s=0.005)
    async with fleet(redis_url, 3, failover=config) as (stack, workers):
        call = stack.call(**LONG)
        left = list(workers)
        for _ in range(2):
            worker = await holder(left)
            await begun(call, worker, 3)
            left.remove(worker)
            await worker.kill()
        lost = await refusal(call)
        assert (lost.reason, lost.metadata["why"], lost.metadata["moves"]) == ("STREAM_LOST", "moves", "1")
        assert left[0].submits == []
        assert (await stack_serves(stack, left[0])) == completion(IDS, 4)


async def stack_serves(stack: Stack, worker: FakeWorker) -> list[int]:
    worker.go()
    return (await stack.generate(**FOUR)).token_ids


async def test_a_request_that_kills_workers_does_not_get_all_of_them(redis_url: str) -> None:
    config = FailoverConfig(max_moves=2, wait_for_worker_s=0, backoff_initial_s=0.005)
    async with fleet(redis_url, 4, failover=config) as (stack, workers):
        left = list(workers)
        with capture_logs() as logs:
            call = stack.call(**LONG)
            for _ in range(3):
                worker = await holder(left)
                left.remove(worker)
                await worker.kill()
            killed = await refusal(call)
        # Not UNAVAILABLE: clients would send it again by themselves.
        assert (killed.code, killed.reason) == (grpc.StatusCode.INTERNAL, "WORKER_FAILED")
        assert left[0].submits == []
        assert any(line.get("losses") == 2 and line["log_level"] == "error" for line in logs)
        assert await stack_serves(stack, left[0]) == completion(IDS, 4)


async def test_a_client_that_cancels_during_a_move_leaves_nothing_behind(redis_url: str) -> None:
    async with fleet(redis_url, 1, failover=PATIENT) as (stack, [worker]):
        call = stack.call(**LONG)
        await holder([worker])
        await begun(call, worker, 3)
        address = worker.address
        await worker.kill()
        await until(lambda: not stack.app.ready)
        call.cancel()
        await until(lambda: stack.observer.open_streams.total() == 0)
        await worker.start(address)
        worker.go()
        assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)
        assert len(worker.submits) == 2
        assert stack.observer.moves == stack.observer.refused_moves == []


async def test_a_deadline_that_passes_during_a_move_ends_it(redis_url: str) -> None:
    async with fleet(redis_url, 1, failover=PATIENT) as (stack, [worker]):
        call = stack.call(**LONG, timeout=1.0)
        await holder([worker])
        await worker.kill()
        assert (await refusal(call)).code is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: stack.observer.open_streams.total() == 0)
        assert stack.observer.moves == []


async def test_a_gateway_that_stops_ends_what_is_on_the_move(redis_url: str) -> None:
    async with fleet(redis_url, 1, failover=PATIENT, server=ServerConfig(drain_s=0.1)) as (stack, [worker]):
        call = stack.call(**LONG)
        await holder([worker])
        await begun(call, worker, 3)
        await worker.kill()
        await until(lambda: not stack.app.ready)
        stopping = asyncio.create_task(stack.app.stop())
        ended = await refusal(call)
        assert (ended.code, ended.reason) == (UNAVAILABLE, "GATEWAY_SHUTTING_DOWN")
        await asyncio.wait_for(stopping, 30)
