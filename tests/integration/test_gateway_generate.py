"""Generate through a real gateway: tokens, usage, isolation, cancellation, deadlines, slow readers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial

import grpc
import pytest
from structlog.testing import capture_logs

from gateway.config import GatewayLimits, ServerConfig
from radixgate.v1 import admin_pb2, inference_pb2, worker_pb2
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import ADMIN_TOKEN, Stack, bearer, gateway, until
from tests.fakes.tiny_tokenizer import tiny_tokenizer

LENGTH = inference_pb2.FINISH_REASON_LENGTH
TEXT = "The quick brown fox jumps over the lazy dog"
IDS = tiny_tokenizer().encode(TEXT).ids


@pytest.fixture
async def stack(redis_url: str, worker: FakeWorker) -> AsyncIterator[Stack]:
    async with gateway(redis_url, [worker], tenants=["acme", "globex"]) as running:
        yield running


async def test_text_ids_and_chat_all_reach_the_worker_as_tokens(stack: Stack, worker: FakeWorker) -> None:
    sampling = {"max_new_tokens": 6}
    by_text = await stack.generate(text=TEXT, sampling=sampling)
    by_ids = await stack.generate(tokens={"token_ids": IDS}, sampling=sampling)
    by_chat = await stack.generate(chat={"messages": [{"role": "user", "content": "Hi"}]}, sampling=sampling)
    assert by_text.token_ids == by_ids.token_ids == completion(IDS, 6)
    sent = [list(submit.prompt[0].token_ids) for submit in worker.submits]
    assert sent[0] == sent[1] == IDS
    assert tiny_tokenizer().decode(sent[2], skip_special_tokens=False).endswith("Hi<|im_end|>\n<|im_start|>assistant\n")
    assert by_chat.token_ids == completion(sent[2], 6)


async def test_the_last_message_alone_has_finish_reason_and_usage(stack: Stack) -> None:
    done = await stack.generate(text=TEXT, sampling={"max_new_tokens": 5})
    *before, last = done.messages
    assert all(not message.finish_reason and not message.HasField("usage") for message in before)
    assert last.finish_reason == LENGTH
    assert last.usage.prompt_tokens == len(IDS)
    assert last.usage.completion_tokens == 5
    assert [int(number) for number in done.text.replace(".", " ").split()] == done.token_ids


async def test_a_stop_token_ends_the_stream(stack: Stack) -> None:
    third = completion(IDS, 3)[2]
    done = await stack.generate(text=TEXT, sampling={"max_new_tokens": 50, "stop_token_ids": [third]})
    assert done.messages[-1].finish_reason == inference_pb2.FINISH_REASON_STOP
    assert done.token_ids[-1] == third


async def test_usage_always_adds_up(stack: Stack, worker: FakeWorker) -> None:
    for tiers in ((0, 0, 0), (3, 0, 0), (1, 2, 3), (len(IDS), 0, 0)):
        device, host, storage = tiers
        cached = inference_pb2.CachedTokens(device=device, host=host, storage=storage)
        worker.admission = worker_pb2.Admission(prompt_tokens=len(IDS), cached=cached)
        usage = (await stack.generate(text=TEXT, sampling={"max_new_tokens": 2})).usage
        assert usage.cached == cached
        assert sum(tiers) + usage.computed_prompt_tokens == usage.prompt_tokens == len(IDS)
    assert [admission[3:] for admission in stack.observer.admissions] == [
        (len(IDS), 0, 0, 0),
        (len(IDS), 3, 0, 0),
        (len(IDS), 1, 2, 3),
        (len(IDS), len(IDS), 0, 0),
    ]


@pytest.mark.parametrize(("prompt_tokens", "device"), [(len(IDS) + 1, 0), (len(IDS), len(IDS) + 1), (len(IDS), -1)])
async def test_a_workers_account_that_does_not_add_up_is_no_answer(
    stack: Stack, worker: FakeWorker, prompt_tokens: int, device: int
) -> None:
    worker.admission = worker_pb2.Admission(
        prompt_tokens=prompt_tokens, cached=inference_pb2.CachedTokens(device=device)
    )
    worker.hold()
    call = stack.call(text=TEXT, sampling={"max_new_tokens": 50})
    await worker.until(lambda: worker.num_running == 1)
    worker.step()
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call.read()
    assert failure.value.code() is grpc.StatusCode.INTERNAL
    await worker.until(lambda: worker.num_running == 0)


async def test_tenants_do_not_share_and_each_reuses_its_own(stack: Stack) -> None:
    sampling = {"max_new_tokens": 1}
    cached = [
        (await stack.generate(tenant, text=TEXT, sampling=sampling)).usage.cached.device
        for tenant in ("acme", "globex", "acme", "globex")
    ]
    assert cached == [0, 0, len(IDS) - 1, len(IDS) - 1]


async def test_scope_and_invalidation_start_from_nothing(stack: Stack) -> None:
    async def cached(scope: str = "") -> int:
        done = await stack.generate(text=TEXT, scope=scope, sampling={"max_new_tokens": 1})
        return done.usage.cached.device

    assert [await cached(), await cached("s"), await cached("s2"), await cached("s")] == [0, 0, 0, len(IDS) - 1]
    await stack.admin.InvalidateCache(admin_pb2.InvalidateCacheRequest(tenant_id="acme"), metadata=bearer(ADMIN_TOKEN))
    assert [await cached(), await cached("s"), await cached()] == [0, 0, len(IDS) - 1]


async def test_adapters_and_their_revisions_do_not_share(redis_url: str, worker: FakeWorker) -> None:
    """One tenant, the same adapters, first with weights of one revision and then of another."""
    keys: dict[tuple[str, str], bytes] = {}
    credentials: dict[str, str] = {}
    for revision in ("r1", "r2"):
        worker.adapters = [worker_pb2.Adapter(name=name, revision=revision) for name in ("one", "two")]
        async with gateway(redis_url, [worker], tenants=[]) as stack:
            stack.keys = credentials or {"acme": await stack.add_tenant("acme")}
            credentials = stack.keys
            listed = await stack.inference.ListModels(
                inference_pb2.ListModelsRequest(), metadata=bearer(credentials["acme"])
            )
            assert list(listed.models[0].adapters) == ["one", "two"]
            for adapter in ("", "one", "two"):
                await stack.generate(text=TEXT, adapter=adapter, sampling={"max_new_tokens": 1})
                submit = worker.submits[-1]
                assert (submit.adapter, submit.adapter_revision) == (adapter, revision if adapter else "")
                keys[adapter, revision] = submit.prompt[0].extra_key
    assert keys["", "r1"] == keys["", "r2"], "without an adapter nothing has changed"
    assert len(set(keys.values())) == 5


async def test_every_gateway_of_a_deployment_uses_the_same_extra_keys(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as one, gateway(redis_url, [worker], tenants=[]) as two:
        two.keys = one.keys
        for stack in (one, two):
            await stack.generate(text=TEXT, sampling={"max_new_tokens": 1})
    first, second = (submit.prompt[0].extra_key for submit in worker.submits)
    assert first == second


async def test_every_default_is_filled_in_for_the_worker(stack: Stack, worker: FakeWorker) -> None:
    await stack.generate(text=TEXT)
    sent = worker.submits[0].sampling
    assert sent.max_new_tokens == worker.model.context_length - len(IDS)
    assert (sent.temperature, sent.top_k, sent.top_p, sent.min_p, sent.repetition_penalty) == (1.0, 0, 1.0, 0.0, 1.0)
    unset = {name.name for name in sent.DESCRIPTOR.fields} - {name.name for name, _ in sent.ListFields()}
    assert unset == {"stop", "stop_token_ids", "logprobs", "prompt_logprobs", "json_schema", "regex", "choice"}


async def test_what_the_client_sets_is_kept_zero_included(stack: Stack, worker: FakeWorker) -> None:
    sampling = {"temperature": 0.0, "seed": 0, "max_new_tokens": 2, "logprobs": 0, "stop": ["a"], "top_p": 0.5}
    await stack.generate(text=TEXT, sampling=sampling)
    sent = worker.submits[0].sampling
    assert (sent.temperature, sent.seed, sent.top_p, list(sent.stop)) == (0.0, 0, 0.5, ["a"])
    assert sent.HasField("logprobs")


async def test_seeds_are_drawn_anew_for_each_request(stack: Stack, worker: FakeWorker) -> None:
    for _ in range(3):
        await stack.generate(text=TEXT, sampling={"max_new_tokens": 1})
    assert len({submit.sampling.seed for submit in worker.submits}) == 3


async def test_the_request_id_is_echoed_or_made_up(stack: Stack, worker: FakeWorker) -> None:
    named = await stack.generate(text=TEXT, request_id="mine-1", sampling={"max_new_tokens": 3})
    assert {message.request_id for message in named.messages} == {"mine-1"}
    unnamed = [await stack.generate(text=TEXT, sampling={"max_new_tokens": 1}) for _ in range(2)]
    assert len({done.messages[0].request_id for done in unnamed}) == 2
    assert all(done.messages[0].request_id for done in unnamed)
    assert worker.submits[0].request_id == "mine-1"


async def test_log_probabilities_arrive_one_for_each_token(stack: Stack, worker: FakeWorker) -> None:
    worker.logprobs = 2
    done = await stack.generate(text=TEXT, sampling={"max_new_tokens": 4, "logprobs": 2})
    entries = [entry for message in done.messages for entry in message.logprobs]
    assert len(entries) == len(done.token_ids) == 4
    assert all(len(entry.top) == 2 for entry in entries)


async def test_many_streams_at_once_each_get_their_own_tokens(stack: Stack, worker: FakeWorker) -> None:
    prompts = [[10 + i, 20 + i, 30 + i] for i in range(64)]
    done = await asyncio.gather(
        *(stack.generate(tokens={"token_ids": prompt}, sampling={"max_new_tokens": 20}) for prompt in prompts)
    )
    assert [each.token_ids for each in done] == [completion(prompt, 20) for prompt in prompts]
    assert worker.num_links == 1
    assert stack.observer.open_streams.total() == 0


async def test_requests_take_turns_over_the_workers(redis_url: str) -> None:
    async with FakeWorker("a") as a, FakeWorker("b") as b, FakeWorker("c") as c:
        async with gateway(redis_url, [a, b, c]) as stack:
            for _ in range(9):
                await stack.generate(text=TEXT, sampling={"max_new_tokens": 1})
        assert [len(worker.submits) for worker in (a, b, c)] == [3, 3, 3]


async def test_a_request_goes_to_a_worker_that_can_hold_it(redis_url: str) -> None:
    async with FakeWorker("small", max_sequence_tokens=64) as small, FakeWorker("large") as large:
        async with gateway(redis_url, [small, large]) as stack:
            for _ in range(4):
                await stack.generate(text=TEXT, sampling={"max_new_tokens": 100})
            assert (len(small.submits), len(large.submits)) == (0, 4)


# ------------------------------------------------------------------------------------------------ ends before the end


async def test_a_client_that_cancels_frees_the_worker(stack: Stack, worker: FakeWorker) -> None:
    worker.hold()
    call = stack.call(text=TEXT, sampling={"max_new_tokens": 400})
    await worker.until(lambda: worker.num_running == 1)
    for _ in range(5):
        worker.step()
        message = await call.read()
        assert message is not grpc.aio.EOF
    call.cancel()
    await worker.until(lambda: worker.num_running == 0)
    assert worker.cancels == [worker.submits[0].sequence_id]
    await until(lambda: stack.observer.open_streams.total() == 0)
    assert ("InferenceService/Generate", "CANCELLED", "acme") in stack.observer.finished


async def test_a_client_that_vanishes_frees_the_worker(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as stack:
        worker.hold()
        own_channel = grpc.aio.insecure_channel(stack.app.address, options=[("grpc.use_local_subchannel_pool", 1)])
        gone = Stack(stack.app, stack.observer, own_channel)
        gone.keys = stack.keys
        calls = [gone.call(text=TEXT, sampling={"max_new_tokens": 400}) for _ in range(3)]
        await worker.until(lambda: worker.num_running == 3)
        worker.step()
        for call in calls:
            await call.read()
        await own_channel.close()
        await worker.until(lambda: worker.num_running == 0)
        await until(lambda: stack.observer.open_streams.total() == 0)
        worker.go()
        assert (await stack.generate(text=TEXT, sampling={"max_new_tokens": 2})).token_ids == completion(IDS, 2)


async def test_the_clients_deadline_travels_as_remaining_time(stack: Stack, worker: FakeWorker) -> None:
    await stack.generate(text=TEXT, timeout=20.0, sampling={"max_new_tokens": 1})
    assert 15_000 < worker.submits[0].timeout_ms <= 20_400  # gRPC rounds deadlines on the wire


async def test_a_call_without_a_deadline_gets_the_default_one(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], server=ServerConfig(default_deadline_s=0.3)) as stack:
        worker.hold()
        refusal = await stack.refused(text=TEXT, timeout=None)
        assert refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert refusal.reason == "DEADLINE_EXCEEDED"
        assert 0 < worker.submits[0].timeout_ms <= 300
        await worker.until(lambda: worker.num_running == 0)


async def test_a_deadline_that_passes_frees_the_worker(stack: Stack, worker: FakeWorker) -> None:
    worker.hold()
    refusal = await stack.refused(text=TEXT, timeout=0.2)
    assert refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED
    await worker.until(lambda: worker.num_running == 0 and bool(worker.cancels))
    await until(lambda: ("InferenceService/Generate", "DEADLINE_EXCEEDED", "acme") in stack.observer.finished)


async def test_a_deadline_that_the_worker_notices_first_is_the_same_to_the_client(
    stack: Stack, worker: FakeWorker
) -> None:
    worker.failure = worker_pb2.SequenceError(
        code=worker_pb2.SEQUENCE_ERROR_CODE_DEADLINE_EXCEEDED, message="waited too long in line"
    )
    refusal = await stack.refused(text=TEXT)
    assert (refusal.code, refusal.message) == (grpc.StatusCode.DEADLINE_EXCEEDED, "waited too long in line")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (worker_pb2.SEQUENCE_ERROR_CODE_INVALID_ARGUMENT, grpc.StatusCode.INVALID_ARGUMENT),
        (worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND, grpc.StatusCode.NOT_FOUND),
        (worker_pb2.SEQUENCE_ERROR_CODE_OVERLOADED, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (worker_pb2.SEQUENCE_ERROR_CODE_SHUTTING_DOWN, grpc.StatusCode.UNAVAILABLE),
        (worker_pb2.SEQUENCE_ERROR_CODE_INTERNAL, grpc.StatusCode.INTERNAL),
    ],
)
async def test_a_worker_that_refuses_is_heard(
    stack: Stack,
    worker: FakeWorker,
    code: "worker_pb2.SequenceErrorCode.ValueType",
    status: grpc.StatusCode,
) -> None:
    worker.failure = worker_pb2.SequenceError(code=code, message="why", field="sampling.top_k")
    assert (await stack.refused(text=TEXT)).code is status
    worker.failure = None
    assert (await stack.generate(text=TEXT, sampling={"max_new_tokens": 2})).token_ids == completion(IDS, 2)


# ------------------------------------------------------------------------------------------------------- slow readers


async def test_a_client_that_does_not_read_costs_bounded_memory_and_stalls_nobody(
    redis_url: str,
) -> None:
    limits = GatewayLimits(max_unread_bytes=16_384)
    async with FakeWorker(context_length=200_000, max_sequence_tokens=200_000, tokens_per_step=64) as worker:
        worker.logprobs = 20
        async with gateway(redis_url, [worker], limits=limits) as stack:
            # Never read: flow control fills up, then what the gateway holds, then the stream must end.
            lazy = stack.call(text=TEXT, sampling={"max_new_tokens": 150_000, "logprobs": 20})
            await worker.until(lambda: bool(worker.submits))
            brisk = await stack.generate(tokens={"token_ids": [5, 6]}, sampling={"max_new_tokens": 64})
            assert brisk.token_ids == completion([5, 6], 64)
            await worker.until(lambda: worker.num_running == 0, timeout_s=30)
            assert worker.cancels == [worker.submits[0].sequence_id]
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                async for _ in lazy:
                    pass
            assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_client_that_reads_nothing_until_its_deadline_is_no_fault_of_the_gateway(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeWorker(context_length=200_000, max_sequence_tokens=200_000, tokens_per_step=16) as worker:
        worker.logprobs = 20
        # Small windows, so that a write of the gateway waits for the reader when time is up.
        narrow = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.http2.lookahead_bytes", 1024),
            ("grpc.http2.bdp_probe", 0),
        ]
        async with gateway(redis_url, [worker]) as stack, grpc.aio.insecure_channel(stack.app.address, narrow) as own:
            lazy = Stack(stack.app, stack.observer, own)
            lazy.keys = stack.keys
            sampling = {"max_new_tokens": 400, "logprobs": 20}
            calls = [lazy.call(text=TEXT, timeout=0.5, sampling=sampling) for _ in range(5)]
            with capture_logs() as logs:
                await until(lambda: len(stack.observer.finished) >= 5 + 2)
            ended = [code for method, code, _ in stack.observer.finished if method.endswith("Generate")]
            assert len(ended) == len(calls)
            assert set(ended) <= {"DEADLINE_EXCEEDED", "CANCELLED"}
            assert [line for line in logs if line["log_level"] == "error"] == []
            assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_tokens_that_wait_for_a_slow_reader_share_messages(redis_url: str) -> None:
    async with FakeWorker(context_length=60_000, max_sequence_tokens=60_000) as worker:
        async with gateway(redis_url, [worker], server=ServerConfig(coalesce_s=0.05)) as stack:
            done = await stack.generate(text=TEXT, sampling={"max_new_tokens": 400})
        assert done.token_ids == completion(IDS, 400)
        assert len(done.messages) < 100
        assert len(done.messages[0].token_ids) < 20


# ------------------------------------------------------------------------------------------------ the other two methods


async def test_counting_sees_what_generating_sees(stack: Stack, worker: FakeWorker) -> None:
    metadata = bearer(stack.keys["acme"])
    for prompt in (
        {"text": TEXT},
        {"chat": {"messages": [{"role": "user", "content": "Hi"}]}},
        {"tokens": {"token_ids": [7, 8, 9]}},
    ):
        request = inference_pb2.CountTokensRequest(**prompt)
        counted = await stack.inference.CountTokens(request, metadata=metadata)
        usage = (await stack.generate(**prompt, sampling={"max_new_tokens": 1})).usage
        assert counted.num_tokens == len(counted.token_ids) == usage.prompt_tokens
        assert list(counted.token_ids) == list(worker.submits[-1].prompt[0].token_ids)


async def test_models_are_listed_with_their_context(redis_url: str) -> None:
    async with FakeWorker("a", model="m1") as a, FakeWorker("b", model="m2", context_length=64) as b:
        async with FakeWorker("c", model="m1") as c, gateway(redis_url, [a, b, c]) as stack:
            listed = await stack.inference.ListModels(
                inference_pb2.ListModelsRequest(), metadata=bearer(stack.keys["acme"])
            )
            assert [(model.name, model.context_length) for model in listed.models] == [("m1", 512), ("m2", 64)]
            for name in ("m1", "m2", "m1", "m1", "m2"):
                await stack.generate(text=TEXT, model=name, sampling={"max_new_tokens": 1})
            assert Counter(len(worker.submits) for worker in (a, b, c)) == Counter([2, 2, 1])
            assert len(b.submits) == 2


def told(stack: Stack, num_messages: int) -> bool:
    return len(stack.observer.first_messages + stack.observer.next_messages) == num_messages


async def test_the_observer_hears_of_every_stream_once(stack: Stack, worker: FakeWorker) -> None:
    worker.hold()
    running = asyncio.create_task(stack.generate(text=TEXT, sampling={"max_new_tokens": 3}))
    await worker.until(lambda: worker.num_running == 1)
    assert stack.observer.open_streams["acme"] == 1
    for num_messages in (1, 2):
        worker.step()
        await until(partial(told, stack, num_messages))
    worker.go()
    done = await running
    await until(lambda: stack.observer.open_streams.total() == 0)
    observer = stack.observer
    assert len(observer.first_messages) == 1
    assert len(observer.first_messages) + len(observer.next_messages) == len(done.messages)
    assert observer.completions == [3]
    assert observer.admissions == [("acme", "tiny", "", len(IDS), 0, 0, 0)]
    assert observer.finished[-1] == ("InferenceService/Generate", "OK", "acme")
