"""The `openai` package against a whole gateway over real sockets: its calls work, and fail, as its users expect."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from radixgate.v1 import worker_pb2
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import Stack, gateway
from tests.fakes.tiny_tokenizer import tiny_tokenizer

HI: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
async def stack(redis_url: str, worker: FakeWorker) -> AsyncIterator[Stack]:
    async with gateway(redis_url, [worker], tenants=("acme", "bolt")) as running:
        yield running


def client_of(stack: Stack, key: str, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"http://{stack.app.http_address}/v1", api_key=key, max_retries=0, timeout=30, **options
    )


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(stack, stack.keys["acme"]) as made:
        yield made


async def two_models(client: openai.AsyncOpenAI) -> list[str]:
    """Wait until the client is shown two, and return their names."""
    async with asyncio.timeout(10):
        while len(names := [model.id async for model in client.models.list()]) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return names


async def submitted(worker: FakeWorker) -> list[int]:
    return [token_id for segment in worker.submits[-1].prompt for token_id in segment.token_ids]


# ------------------------------------------------------------------------------------------------------------- chats


async def test_a_chat_is_answered_with_what_grpc_answers(
    stack: Stack, client: openai.AsyncOpenAI, worker: FakeWorker
) -> None:
    answer = await client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=6, extra_body={"return_token_ids": True}
    )
    same = await stack.generate(chat={"messages": HI}, sampling={"max_new_tokens": 6})
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", same.text)
    assert choice.token_ids == same.token_ids == completion(await submitted(worker), 6)  # type: ignore[attr-defined]
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == same.usage.prompt_tokens + 6
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint


async def test_a_stream_says_the_same_piece_by_piece(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="tiny", messages=HI, max_tokens=20)
    stream = await client.chat.completions.create(
        model="tiny", messages=HI, max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "length"
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20
    details = chunks[-1].usage.prompt_tokens_details
    assert details is not None
    assert details.cached_tokens == chunks[-1].usage.prompt_tokens - 1  # the first request has left it there


async def test_a_stream_without_usage_says_nothing_of_it(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(model="tiny", messages=HI, max_tokens=3, stream=True)
    chunks = [chunk async for chunk in stream]
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
async def test_several_completions_have_their_own_places(client: openai.AsyncOpenAI, stream: bool) -> None:
    texts: dict[int, str] = {}
    ends: dict[int, str | None] = {}
    if stream:
        async for chunk in await client.chat.completions.create(
            model="tiny", messages=HI, max_tokens=5, n=3, stream=True
        ):
            for delta in chunk.choices:
                texts[delta.index] = texts.get(delta.index, "") + (delta.delta.content or "")
                ends[delta.index] = delta.finish_reason or ends.get(delta.index)
    else:
        answer = await client.chat.completions.create(model="tiny", messages=HI, max_tokens=5, n=3)
        texts = {choice.index: choice.message.content or "" for choice in answer.choices}
        ends = {choice.index: choice.finish_reason for choice in answer.choices}
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 15
    assert sorted(texts) == [0, 1, 2]
    assert len(set(texts.values())) == 3
    assert set(ends.values()) == {"length"}


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_name_tokens_by_text_and_bytes(
    client: openai.AsyncOpenAI, worker: FakeWorker, stream: bool
) -> None:
    worker.logprobs = 2
    entries: list[Any] = []
    asked: dict[str, Any] = {"model": "tiny", "messages": HI, "max_tokens": 30, "logprobs": True, "top_logprobs": 2}
    if stream:
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            entries += [entry for choice in chunk.choices if choice.logprobs for entry in choice.logprobs.content or ()]
    else:
        answer = await client.chat.completions.create(**asked)
        assert answer.choices[0].logprobs is not None
        entries = answer.choices[0].logprobs.content or []
    token_ids = completion(await submitted(worker), 30)
    text = b"".join(bytes(entry.bytes) for entry in entries)
    assert text.decode(errors="replace") == tiny_tokenizer().decode(token_ids)
    assert {entry.logprob for entry in entries} == {-0.5}
    assert [top.token for top in entries[0].top_logprobs] == ["<|endoftext|>", "<|im_start|>"]
    assert worker.submits[-1].sampling.logprobs == 2


async def test_what_a_client_asks_for_reaches_the_worker(client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    asked: dict[str, Any] = {
        "max_completion_tokens": 3,
        "temperature": 0.25,
        "seed": 11,
        "stop": ["\n"],
        "user": "u-1",
        "response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}},
        "extra_body": {"top_k": 7, "scope": "u-1"},
    }
    await client.chat.completions.create(model="tiny", messages=HI, **asked)
    sampling = worker.submits[-1].sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.seed, sampling.top_k) == (3, 0.25, 11, 7)
    assert list(sampling.stop) == ["\n"]
    assert '"required":["city"]' in sampling.json_schema


# ------------------------------------------------------------------------------------------------------- completions


async def test_a_prompt_is_completed(stack: Stack, client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt="The quick", max_tokens=5)
    same = await stack.generate(text="The quick", sampling={"max_new_tokens": 5})
    assert answer.choices[0].text == same.text
    assert answer.object == "text_completion"


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_make_choices_in_their_order(client: openai.AsyncOpenAI, stream: bool) -> None:
    prompts = [[11, 12], [13], [14, 15, 16]]
    asked: dict[str, Any] = {"model": "tiny", "prompt": prompts, "n": 2, "max_tokens": 4}
    token_ids: dict[int, list[int]] = {}
    if stream:
        async for chunk in await client.completions.create(
            **asked, stream=True, extra_body={"return_token_ids": True}, stream_options={"include_usage": True}
        ):
            for choice in chunk.choices:
                token_ids.setdefault(choice.index, []).extend(getattr(choice, "token_ids", ()))
        usage = chunk.usage
    else:
        answer = await client.completions.create(**asked, extra_body={"return_token_ids": True})
        token_ids = {choice.index: choice.token_ids for choice in answer.choices}
        usage = answer.usage
    assert token_ids == {
        place * 2 + index: completion(prompt, 4, index) for place, prompt in enumerate(prompts) for index in range(2)
    }
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (6, 24)


async def test_log_probabilities_of_texts_have_offsets(client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    worker.logprobs = 1
    answer = await client.completions.create(model="tiny", prompt=[11, 12, 13], max_tokens=12, logprobs=1)
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.tokens is not None
    assert found.token_logprobs == [-0.5] * 12
    assert found.text_offset is not None
    assert found.text_offset[0] == 0
    assert sorted(found.text_offset) == found.text_offset
    assert found.top_logprobs is not None
    assert all(token in top for token, top in zip(found.tokens, found.top_logprobs, strict=True))


async def test_one_of_several_prompts_that_is_too_long_is_named(client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model="tiny", prompt=[[11], [12] * 600], max_tokens=4)
    assert caught.value.param == "prompt[1]"
    await worker.until(lambda: worker.num_running == 0)


# ------------------------------------------------------------------------------------------------------------ models


async def test_models_are_listed_and_looked_up(stack: Stack, client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    worker.tell_adapters(
        worker_pb2.Adapter(name="pirate", revision="1"),
        worker_pb2.Adapter(name="secret", revision="2", tenants=["bolt"]),
    )
    assert await two_models(client) == ["tiny", "tiny:pirate"]
    assert (await client.models.retrieve("tiny:pirate")).id == "tiny:pirate"
    async with client_of(stack, stack.keys["bolt"]) as other:
        assert [model.id async for model in other.models.list()] == ["tiny", "tiny:pirate", "tiny:secret"]


async def test_an_adapter_answers_under_the_name_of_model_and_adapter(
    client: openai.AsyncOpenAI, worker: FakeWorker
) -> None:
    worker.tell_adapters(worker_pb2.Adapter(name="pirate", revision="1"))
    await two_models(client)
    answer = await client.chat.completions.create(model="tiny:pirate", messages=HI, max_tokens=2)
    assert answer.model == "tiny:pirate"
    assert worker.submits[-1].adapter == "pirate"


async def test_another_tenants_adapter_is_the_same_as_none(
    client: openai.AsyncOpenAI, worker: FakeWorker, stack: Stack
) -> None:
    worker.tell_adapters(worker_pb2.Adapter(name="secret", revision="2", tenants=["bolt"]))
    async with client_of(stack, stack.keys["bolt"]) as owner:
        await two_models(owner)
        await owner.chat.completions.create(model="tiny:secret", messages=HI, max_tokens=2)
    told = []
    for name in ("secret", "nothing"):
        for call in (
            client.chat.completions.create(model=f"tiny:{name}", messages=HI),
            client.models.retrieve(f"tiny:{name}"),
        ):
            with pytest.raises(openai.NotFoundError) as caught:
                await call
            assert caught.value.code == "model_not_found"
            told.append(str(caught.value).replace(name, "NAME"))
    assert len(set(told)) == 1


# ------------------------------------------------------------------------------------------------------------ errors


async def test_faults_of_the_request_name_their_parameter(client: openai.AsyncOpenAI) -> None:
    for asked, param in (
        ({"temperature": 101}, "temperature"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 100_000}, "max_completion_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stop": ["x" * 300]}, "stop[0]"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "pope", "content": "hi"}]}, "messages[0].role"),
        ({"extra_body": {"tenant": "bolt"}}, "tenant"),
        ({"extra_headers": {"x-tenant-id": "bolt"}}, "x-tenant-id"),
        ({"extra_query": {"tenant": "bolt"}}, "query"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**{"model": "tiny", "messages": HI, **asked})
        assert caught.value.param == param, asked
        assert caught.value.type == "invalid_request_error"


async def test_refusals_have_the_exceptions_that_users_know(
    stack: Stack, client: openai.AsyncOpenAI, worker: FakeWorker
) -> None:
    async with client_of(stack, "rg_wrong") as stranger:
        with pytest.raises(openai.AuthenticationError) as refused:
            await stranger.models.list()
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="gpt", messages=HI)
    with pytest.raises(openai.NotFoundError):
        await client.embeddings.create(model="tiny", input="hi")
    worker.failure = worker_pb2.SequenceError(code=worker_pb2.SEQUENCE_ERROR_CODE_INTERNAL, message="secret detail")
    with pytest.raises(openai.InternalServerError) as failed:
        await client.chat.completions.create(model="tiny", messages=HI)
    assert "secret detail" not in str(failed.value)


async def test_an_error_in_mid_stream_is_raised_where_the_client_reads(
    client: openai.AsyncOpenAI, worker: FakeWorker
) -> None:
    worker.hold()
    asking = asyncio.create_task(client.chat.completions.create(model="tiny", messages=HI, max_tokens=100, stream=True))
    await worker.until(lambda: worker.num_running == 1)
    worker.step()
    stream = await asking
    assert (await anext(stream)).choices[0].delta.role == "assistant"
    worker.end_all(worker_pb2.SEQUENCE_ERROR_CODE_SHUTTING_DOWN)
    with pytest.raises(openai.APIError) as caught:
        async for _ in stream:
            pass
    assert caught.value.code == "stream_lost"


async def test_a_deadline_ends_a_request_and_is_not_tried_again(stack: Stack, worker: FakeWorker) -> None:
    worker.hold()
    async with client_of(stack, stack.keys["acme"]).with_options(max_retries=3) as patient:
        with pytest.raises(openai.InternalServerError) as caught:
            await patient.chat.completions.create(
                model="tiny", messages=HI, extra_headers={"x-request-timeout-ms": "50"}
            )
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    assert len(worker.submits) == 1


async def test_a_client_that_gives_up_frees_its_sequence(client: openai.AsyncOpenAI, worker: FakeWorker) -> None:
    worker.hold()
    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=0.2).chat.completions.create(model="tiny", messages=HI)
    await worker.until(lambda: len(worker.cancels) == 1)
    worker.go()
    assert (await client.chat.completions.create(model="tiny", messages=HI, max_tokens=2)).choices


async def test_the_synchronous_client_works_too(stack: Stack) -> None:
    def use() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"http://{stack.app.http_address}/v1", api_key=stack.keys["acme"]) as client:
            whole = client.chat.completions.create(model="tiny", messages=HI, max_tokens=5)
            stream = client.chat.completions.create(model="tiny", messages=HI, max_tokens=5, stream=True)
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
            return whole.choices[0].message.content, "".join(pieces)

    whole, streamed = await asyncio.to_thread(use)
    assert whole == streamed


@pytest.mark.parametrize("stream", [False, True])
async def test_large_answers_are_written_beside_the_event_loop_and_are_whole(
    redis_url: str, worker: FakeWorker, stream: bool
) -> None:
    worker.logprobs, worker.tokens_per_step = 20, 100
    asked: Any = {"model": "tiny", "prompt": [11], "max_tokens": 400, "logprobs": 20, "stream": stream}
    async with gateway(redis_url, [worker]) as stack, client_of(stack, stack.keys["acme"]) as client:
        answer = await client.completions.create(**asked)
        choices = [chunk.choices[0] async for chunk in answer] if stream else answer.choices
    assert sum(len(choice.logprobs.tokens) for choice in choices if choice.logprobs) == 400


async def test_a_colon_can_be_part_of_a_models_name(redis_url: str) -> None:
    async with FakeWorker(model="qwen:7b") as worker, gateway(redis_url, [worker]) as stack:
        worker.tell_adapters(worker_pb2.Adapter(name="pirate", revision="1"))
        async with client_of(stack, stack.keys["acme"]) as client:
            assert await two_models(client) == ["qwen:7b", "qwen:7b:pirate"]
            for name, adapter in (("qwen:7b", ""), ("qwen:7b:pirate", "pirate")):
                await client.chat.completions.create(model=name, messages=HI, max_tokens=2)
                assert worker.submits[-1].adapter == adapter
            for name in (":pirate", "qwen:7b:", "qwen", ":"):
                with pytest.raises(openai.NotFoundError):
                    await client.chat.completions.create(model=name, messages=HI, max_tokens=2)


@pytest.mark.parametrize("deadline", ["0", "-1", "1.5", "x", "9" * 30, ""])
async def test_a_deadline_that_is_no_number_is_refused(client: openai.AsyncOpenAI, deadline: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            model="tiny", messages=HI, extra_headers={"x-request-timeout-ms": deadline}
        )
    assert caught.value.param == "x-request-timeout-ms"
