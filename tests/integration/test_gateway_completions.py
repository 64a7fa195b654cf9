"""Several completions of one request, log probabilities of its prompt and constraints, through a real gateway."""

from collections import defaultdict
from collections.abc import AsyncIterator

import grpc
import pytest

from radixgate.v1 import inference_pb2, worker_pb2
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import Completion, Stack, gateway, until

IDS = [11, 12, 13, 14, 15]


@pytest.fixture
async def stack(redis_url: str, worker: FakeWorker) -> AsyncIterator[Stack]:
    async with gateway(redis_url, [worker], tenants=["acme"]) as running:
        yield running


def by_index(done: Completion) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = defaultdict(list)
    for message in done.messages:
        tokens[message.index] += message.token_ids
    return tokens


async def test_each_completion_is_whole_and_the_last_message_of_all_has_the_usage(stack: Stack) -> None:
    done = await stack.generate(tokens={"token_ids": IDS}, sampling={"max_new_tokens": 7, "n": 5})
    assert by_index(done) == {index: completion(IDS, 7, index) for index in range(5)}
    assert {message.index for message in done.messages if message.finish_reason} == set(range(5))
    assert [message.HasField("usage") for message in done.messages] == [False] * (len(done.messages) - 1) + [True]
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (5, 35)
    assert stack.observer.completions == [35]
    assert len(stack.observer.admissions) == 1


async def test_completions_end_each_at_its_own_time(stack: Stack) -> None:
    early = completion(IDS, 3, 1)[2]
    done = await stack.generate(
        tokens={"token_ids": IDS}, sampling={"max_new_tokens": 9, "n": 3, "stop_token_ids": [early]}
    )
    tokens = by_index(done)
    assert tokens[1] == completion(IDS, 3, 1)
    reasons = {message.index: message.finish_reason for message in done.messages if message.finish_reason}
    assert reasons[1] == inference_pb2.FINISH_REASON_STOP
    assert done.usage.completion_tokens == sum(map(len, tokens.values()))


async def test_an_error_ends_all_completions_and_is_the_status_of_the_call(stack: Stack, worker: FakeWorker) -> None:
    worker.failure = worker_pb2.SequenceError(
        code=worker_pb2.SEQUENCE_ERROR_CODE_INVALID_ARGUMENT, message="no text fulfils it", field="sampling.json_schema"
    )
    refusal = await stack.refused(tokens={"token_ids": IDS}, sampling={"n": 3, "json_schema": "false"})
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.fields == {"sampling.json_schema": "no text fulfils it"}


async def test_a_client_that_leaves_stops_all_completions(stack: Stack, worker: FakeWorker) -> None:
    worker.hold()
    call = stack.call(tokens={"token_ids": IDS}, sampling={"max_new_tokens": 400, "n": 4})
    await worker.until(lambda: worker.num_running == 4)
    worker.step(2)
    await call.read()
    call.cancel()
    await worker.until(lambda: worker.num_running == 0)
    await until(lambda: stack.observer.open_streams.total() == 0)
    assert len(worker.cancels) == 1


async def test_log_probabilities_of_the_prompt_come_with_completion_0(stack: Stack) -> None:
    done = await stack.generate(tokens={"token_ids": IDS}, sampling={"max_new_tokens": 2, "n": 2, "prompt_logprobs": 0})
    scored = [(message.index, entry.logprob) for message in done.messages for entry in message.prompt_logprobs]
    assert scored == [(0, -1.0), (0, -2.0), (0, -3.0), (0, -4.0)]


@pytest.mark.parametrize(
    "constraint", [{"json_schema": '{"type": "null"}'}, {"regex": "a+"}, {"choice": {"texts": ["a"]}}]
)
async def test_a_constraint_reaches_the_worker_as_it_was_sent(
    stack: Stack, worker: FakeWorker, constraint: dict[str, object]
) -> None:
    await stack.generate(tokens={"token_ids": IDS}, sampling={"max_new_tokens": 1, **constraint})
    (submit,) = worker.submits
    assert submit.sampling.n == 1
    assert not submit.sampling.HasField("prompt_logprobs")
    (kind,) = constraint
    assert submit.sampling.WhichOneof("constraint") == kind
    expected = inference_pb2.SamplingParams(**constraint)  # type: ignore[arg-type]
    assert getattr(submit.sampling, kind) == getattr(expected, kind)
