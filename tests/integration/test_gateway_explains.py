"""What answers say of themselves: why they come from where they come, and that nothing but time was computed."""

import asyncio
import contextlib
import json
from typing import Any

import grpc
import pytest

from gateway.config import FailoverConfig, RoutingConfig
from radixgate.v1 import inference_pb2, worker_pb2
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import FOUR, IDS, Stack, bearer, gateway, until
from tests.fakes.http_client import CHAT, ask

ASKS = (("radixgate-explain", "1"),)
EXPLAINED = RoutingConfig(explain=True)
LONG: dict[str, Any] = {"tokens": {"token_ids": IDS}, "sampling": {"max_new_tokens": 40}}


async def explanation(call: Any) -> list[dict[str, Any]] | None:
    """Read a call to its end; return what its trailing metadata explain."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    trailing = dict(await call.trailing_metadata())
    return json.loads(trailing["radixgate-explain"]) if "radixgate-explain" in trailing else None


async def test_who_asks_is_told_which_worker_was_chosen(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], routing=EXPLAINED) as stack:
        told = await explanation(stack.call(**FOUR, metadata=ASKS))
        assert told is not None
        assert [entry["worker"] for entry in told] == [worker.address]
        assert await explanation(stack.call(**FOUR)) is None
        assert await explanation(stack.call(**FOUR, metadata=(("radixgate-explain", "0"),))) is None


async def test_moves_are_told_too(redis_url: str) -> None:
    async with FakeWorker("a") as a, FakeWorker("b") as b:
        a.hold()
        b.hold()
        async with gateway(redis_url, [a, b], routing=EXPLAINED) as stack:
            call = stack.call(**LONG, metadata=ASKS)
            await until(lambda: a.num_running + b.num_running == 1)
            first, second = (a, b) if a.num_running else (b, a)
            first.step(3)
            await until(lambda: bool(stack.observer.first_messages))
            await first.kill()
            second.go()
            told = await explanation(call)
            assert told is not None
            left = {"left": first.address, "cause": "lost", "tokens": 3}
            assert (told[0]["worker"], told[1], told[2]["worker"]) == (first.address, left, second.address)


async def test_an_error_is_explained_beside_its_details(redis_url: str, worker: FakeWorker) -> None:
    worker.failure = worker_pb2.SequenceError(code=worker_pb2.SEQUENCE_ERROR_CODE_INTERNAL)
    async with gateway(redis_url, [worker], routing=EXPLAINED) as stack:
        call = stack.call(**FOUR, metadata=ASKS)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call.read()
        assert "grpc-status-details-bin" in dict(failure.value.trailing_metadata() or ())
        assert next(iter(await explanation(call) or []))["worker"] == worker.address


async def test_where_operators_do_not_allow_it_nothing_is_explained(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as stack:
        call = stack.call(**FOUR, metadata=ASKS)
        assert await explanation(call) is None
        assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("stream", [False, True])
async def test_over_http_the_choice_is_in_a_header(redis_url: str, worker: FakeWorker, stream: bool) -> None:
    async with gateway(redis_url, [worker], routing=EXPLAINED) as stack:
        asking = {**CHAT, "stream": stream}
        answer = await post(stack, asking, {"x-radixgate-explain": "1"})
        assert answer.status == 200
        assert json.loads(answer.headers["x-radixgate-explain"])[0]["worker"] == worker.address
        assert "x-radixgate-explain" not in (await post(stack, asking, {})).headers


async def post(stack: Stack, body: Any, headers: dict[str, str]) -> Any:
    path = "/v1/chat/completions"
    return await ask(stack.app.http_address, "POST", path, body, key=stack.keys["acme"], headers=headers)


# ------------------------------------------------------------------------------------------------------- over HTTP


async def test_events_go_on_at_another_worker(redis_url: str) -> None:
    async with FakeWorker("a") as a, FakeWorker("b") as b:
        a.hold()
        b.hold()
        async with gateway(redis_url, [a, b]) as stack:
            body = {**CHAT, "max_tokens": 30, "stream": True, "stream_options": {"include_usage": True}}
            asking = asyncio.create_task(post(stack, {**body, "return_token_ids": True}, {}))
            await until(lambda: a.num_running + b.num_running == 1)
            first, second = (a, b) if a.num_running else (b, a)
            first.step(5)
            await until(lambda: bool(stack.observer.first_messages))
            await first.kill()
            second.go()
            answer = await asking
            prompt = first.submits[0].prompt[0].token_ids
            chunks = [choice for event in answer.events for choice in event["choices"]]
            text = "".join(choice["delta"].get("content", "") for choice in chunks)
            assert text == "".join(f" {token}" for token in completion(prompt, 30))
            assert [choice["finish_reason"] for choice in chunks if choice["finish_reason"]] == ["length"]
            assert answer.events[-1]["usage"]["completion_tokens"] == 30
            assert stack.observer.moves == [("lost", "continued")]


async def test_over_http_a_request_waits_for_its_worker(redis_url: str) -> None:
    worker = await FakeWorker().start()
    address = worker.address
    await worker.kill()
    async with gateway(redis_url, [address], failover=FailoverConfig(wait_for_worker_s=60.0)) as stack:
        asking = asyncio.create_task(post(stack, CHAT, {}))
        await until(lambda: len(stack.app.fronts.calls.in_flight) == 1)
        await worker.start(address)
        assert (await asyncio.wait_for(asking, 30)).status == 200
        await worker.kill()


async def test_over_http_patience_is_not_longer_than_the_clients(redis_url: str) -> None:
    async with gateway(redis_url, ["127.0.0.1:1"], failover=FailoverConfig(wait_for_worker_s=60.0)) as stack:
        answer = await asyncio.wait_for(post(stack, CHAT, {"x-request-timeout-ms": "200"}), 30)
        assert (answer.status, answer.error["code"]) == (503, "no_worker")


# ------------------------------------------------------------------------------------------------------- simulated


async def test_what_a_simulated_worker_answers_says_so(redis_url: str, worker: FakeWorker) -> None:
    worker.model.simulated = True
    async with gateway(redis_url, [worker]) as stack:
        done = await stack.generate(**FOUR)
        assert all(message.simulated for message in done.messages)
        listed = await stack.inference.ListModels(
            inference_pb2.ListModelsRequest(), metadata=bearer(stack.keys["acme"])
        )
        assert [model.simulated for model in listed.models] == [True]
        assert (await post(stack, CHAT, {})).json["system_fingerprint"] == "radixgate-simulated"
        events = (await post(stack, {**CHAT, "stream": True}, {})).events
        assert {event["system_fingerprint"] for event in events} == {"radixgate-simulated"}


async def test_what_a_model_answers_does_not(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as stack:
        assert not any(message.simulated for message in (await stack.generate(**FOUR)).messages)
        assert (await post(stack, CHAT, {})).json["system_fingerprint"].startswith("fp_")


async def test_simulated_workers_are_no_substitute_for_real_ones(redis_url: str) -> None:
    async with FakeWorker("a") as a, FakeWorker("b") as b, FakeWorker("c") as c:
        c.model.simulated = True
        async with gateway(redis_url, [a, b, c]) as stack:
            for _ in range(6):
                assert not (await stack.generate(**FOUR)).messages[0].simulated
            assert c.submits == []
