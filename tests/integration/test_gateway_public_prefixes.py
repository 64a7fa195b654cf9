"""Public prefixes: one computation for all tenants, each tenant's own behind the barrier, out of reach once deleted."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc
import pytest

from radixgate.v1 import admin_pb2, inference_pb2, worker_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, FOUR, Completion, Refusal, Stack, bearer, gateway

ADMIN = bearer(ADMIN_TOKEN)
PREFIX = list(range(10, 60))


async def create(stack: Stack, prefix_id: str = "system", **more: Any) -> admin_pb2.PublicPrefix:
    fields = more if {"text", "chat", "tokens"} & set(more) else {"tokens": {"token_ids": PREFIX}, **more}
    request = admin_pb2.CreatePublicPrefixRequest(**{"prefix_id": prefix_id, **fields})
    return (await stack.admin.CreatePublicPrefix(request, metadata=ADMIN, timeout=20)).prefix


async def delete(stack: Stack, prefix_id: str = "system") -> admin_pb2.PurgedCache:
    request = admin_pb2.DeletePublicPrefixRequest(prefix_id=prefix_id)
    return (await stack.admin.DeletePublicPrefix(request, metadata=ADMIN, timeout=20)).purged


async def listed(stack: Stack) -> list[str]:
    answer = await stack.admin.ListPublicPrefixes(admin_pb2.ListPublicPrefixesRequest(), metadata=ADMIN, timeout=10)
    return [prefix.prefix_id for prefix in answer.prefixes]


async def refusal(call: Awaitable[Any]) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return Refusal.of(refused.value)


async def ask(stack: Stack, tenant_id: str, own: list[int], **more: Any) -> Completion:
    return await stack.generate(
        tenant_id, tokens={"token_ids": [*PREFIX, *own]}, sampling={"max_new_tokens": 1}, **more
    )


def public_and_cached(done: Completion) -> tuple[int, int, int]:
    usage = done.usage
    return usage.public_prefix_tokens, usage.cached_public_tokens, usage.cached.device


@pytest.fixture
async def stack(redis_url: str, worker: FakeWorker) -> AsyncIterator[Stack]:
    async with gateway(redis_url, [worker], tenants=["acme", "globex"]) as running:
        yield running


async def test_tenants_share_a_public_prefix_and_nothing_behind_it(stack: Stack) -> None:
    prefix = await create(stack, display_name="The assistant's rules")
    assert (prefix.num_tokens, prefix.model, prefix.display_name) == (50, "tiny", "The assistant's rules")
    assert public_and_cached(await ask(stack, "acme", [1, 2, 3])) == (50, 0, 0)
    assert public_and_cached(await ask(stack, "globex", [1, 2, 3])) == (50, 50, 50)
    assert public_and_cached(await ask(stack, "globex", [1, 2, 3, 4])) == (50, 50, 53)
    assert public_and_cached(await ask(stack, "acme", [1, 2, 9])) == (50, 50, 52)


async def test_the_observer_hears_of_public_tokens_apart(stack: Stack) -> None:
    await create(stack)
    await ask(stack, "acme", [1])
    await ask(stack, "globex", [1])
    await stack.generate("acme", tokens={"token_ids": [7, 8, 9]}, sampling={"max_new_tokens": 1})
    assert stack.observer.public_prefixes == [("acme", "tiny", "", 50, 0), ("globex", "tiny", "", 50, 50)]


async def test_the_barrier_divides_a_prompt_in_two_segments(stack: Stack, worker: FakeWorker) -> None:
    await create(stack)
    await ask(stack, "acme", [1, 2, 3])
    await ask(stack, "globex", [4])
    (public, own), (same, other) = (submit.prompt for submit in worker.submits)
    assert (list(public.token_ids), list(own.token_ids)) == (PREFIX, [1, 2, 3])
    assert public.extra_key == same.extra_key
    assert len({public.extra_key, own.extra_key, other.extra_key}) == 3


async def test_a_prompt_that_is_the_prefix_and_no_more_stays_the_tenants_own(stack: Stack, worker: FakeWorker) -> None:
    await create(stack)
    assert public_and_cached(await ask(stack, "acme", [])) == (0, 0, 0)
    assert len(worker.submits[0].prompt) == 1


async def test_the_longest_prefix_counts(stack: Stack) -> None:
    await create(stack, "short", tokens={"token_ids": PREFIX[:20]})
    await create(stack, "long")
    assert public_and_cached(await ask(stack, "acme", [1]))[0] == 50
    done = await stack.generate(tokens={"token_ids": [*PREFIX[:30], 1]}, sampling={"max_new_tokens": 1})
    assert public_and_cached(done)[0] == 20


async def test_scopes_share_the_prefix_as_well(stack: Stack) -> None:
    await create(stack)
    await ask(stack, "acme", [1, 2], scope="one")
    assert public_and_cached(await ask(stack, "acme", [1, 2], scope="two")) == (50, 50, 50)


async def test_a_deleted_prefix_is_out_of_reach_and_purged(stack: Stack, worker: FakeWorker) -> None:
    await create(stack)
    await ask(stack, "acme", [1, 2])
    public = worker.submits[0].prompt[0].extra_key
    deleting = asyncio.create_task(delete(stack))
    async with asyncio.timeout(5):
        while "system" in await listed(stack):  # noqa: ASYNC110 - the gateway tells nobody
            await asyncio.sleep(0)
    assert public_and_cached(await ask(stack, "globex", [1, 2])) == (0, 0, 0)
    purged = await deleting
    assert (purged.device_tokens, purged.namespaces) == (50, 1)
    assert worker.drops == [(public, "")]
    assert (await refusal(delete(stack))).reason == "PREFIX_NOT_FOUND"


async def test_a_prefix_registered_again_meets_nothing_of_the_old_one(stack: Stack, worker: FakeWorker) -> None:
    await create(stack)
    await ask(stack, "acme", [1])
    await delete(stack)
    await create(stack)
    assert public_and_cached(await ask(stack, "acme", [2])) == (50, 0, 0)
    assert worker.submits[0].prompt[0].extra_key != worker.submits[1].prompt[0].extra_key


async def test_prefixes_outlive_gateways_and_are_known_to_all(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as one, gateway(redis_url, [worker], tenants=()) as other:
        other.keys.update(one.keys)
        await create(one)
        assert await listed(other) == ["system"]
        assert public_and_cached(await ask(other, "acme", [1]))[0] == 50
        keys = one.keys
    async with gateway(redis_url, [worker], tenants=()) as later:
        later.keys.update(keys)
        assert await listed(later) == ["system"]
        assert public_and_cached(await ask(later, "acme", [1]))[:2] == (50, 50)
        await delete(later)


async def test_a_deleted_prefix_is_out_of_reach_on_every_gateway_before_it_is_purged(
    redis_url: str, worker: FakeWorker
) -> None:
    async with gateway(redis_url, [worker]) as one, gateway(redis_url, [worker], tenants=()) as other:
        other.keys.update(one.keys)
        await create(one)
        await listed(other)
        await delete(one)
        assert public_and_cached(await ask(other, "acme", [1])) == (0, 0, 0)


# -------------------------------------------------------------------------------------------------------- adapters


def adapter(name: str, revision: str, *tenants: str) -> worker_pb2.Adapter:
    return worker_pb2.Adapter(name=name, revision=revision, tenants=tenants)


async def test_a_prefix_of_an_adapter_is_for_its_requests_alone(stack: Stack, worker: FakeWorker) -> None:
    worker.tell_adapters(adapter("poet", "r1"))
    await stack.generate(adapter="poet", **FOUR)
    await create(stack, adapter="poet")
    assert public_and_cached(await ask(stack, "acme", [1])) == (0, 0, 0)
    assert public_and_cached(await ask(stack, "acme", [1], adapter="poet")) == (50, 0, 0)
    assert public_and_cached(await ask(stack, "globex", [1], adapter="poet")) == (50, 50, 50)
    worker.tell_adapters(adapter("poet", "r2"))
    await asyncio.sleep(0)
    await delete(stack)
    assert {revision for _, revision in worker.drops} == {"r2"}


@pytest.mark.parametrize("name", ["poet", "nobody"])
async def test_an_adapter_that_not_all_tenants_may_use_has_no_public_prefix(
    stack: Stack, worker: FakeWorker, name: str
) -> None:
    worker.tell_adapters(adapter("poet", "r1", "acme"))
    await stack.generate("acme", adapter="poet", **FOUR)
    refused = await refusal(create(stack, adapter=name))
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND")


# ---------------------------------------------------------------------------------------------------- text and chats


async def tokens_of(stack: Stack, **prompt: Any) -> list[int]:
    counted = await stack.inference.CountTokens(
        inference_pb2.CountTokensRequest(**prompt), metadata=bearer(stack.keys["acme"]), timeout=10
    )
    return list(counted.token_ids)


SYSTEM = {"role": "system", "content": "You are terse."}
FOLLOWING = ["hello there", "  indented", "\n\nnew lines", "'s", "Zebra", "9 lives", ".", "é", "\u0301", "你好", "🙂"]


@pytest.mark.parametrize("following", FOLLOWING)
async def test_whatever_follows_a_text_the_prompt_begins_with_its_prefix(stack: Stack, following: str) -> None:
    prefix = await create(stack, text="Answer the question in one wor")
    assert prefix.num_tokens >= 1
    done = await stack.generate(text="Answer the question in one wor" + following, sampling={"max_new_tokens": 1})
    assert done.usage.public_prefix_tokens == prefix.num_tokens


@pytest.mark.parametrize("following", FOLLOWING)
async def test_whatever_a_user_says_behind_a_system_prompt_the_chat_begins_with_its_prefix(
    stack: Stack, following: str
) -> None:
    prefix = await create(stack, chat={"messages": [SYSTEM]})
    messages = [SYSTEM, {"role": "user", "content": following}]
    done = await stack.generate(chat={"messages": messages}, sampling={"max_new_tokens": 1})
    assert done.usage.public_prefix_tokens == prefix.num_tokens
    alone = await tokens_of(stack, chat={"messages": [SYSTEM, {"role": "user", "content": ""}]})
    assert prefix.num_tokens > len(alone) // 2


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("prefix_id", {"prefix_id": "No"}), ("prefix_id", {"prefix_id": "x" * 65}),
        ("display_name", {"display_name": "x" * 129}), ("text", {"text": ""}), ("text", {"text": "x " * 50_000}),
        ("chat", {"chat": {}}), ("tokens.token_ids", {"tokens": {}}),
        ("tokens.token_ids[0]", {"tokens": {"token_ids": [-1]}}),
        ("tokens", {"tokens": {"token_ids": [5] * 512}}),
        ("chat.messages[0].role", {"chat": {"messages": [{"role": "nobody", "content": "x"}]}}),
    ],
    ids=str,
)  # fmt: skip
async def test_faults_of_a_prefix_are_named(stack: Stack, field: str, request_: dict[str, Any]) -> None:
    refused = await refusal(create(stack, **request_))
    assert (refused.code, set(refused.fields)) == (grpc.StatusCode.INVALID_ARGUMENT, {field})


async def test_without_a_prefix_there_is_nothing_to_register(stack: Stack) -> None:
    request = admin_pb2.CreatePublicPrefixRequest(prefix_id="p")
    refused = await refusal(stack.admin.CreatePublicPrefix(request, metadata=ADMIN, timeout=10))
    assert set(refused.fields) == {"prefix"}


ALTERNATING = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>"
    "\n{% endfor %}"
)


async def test_what_a_template_refuses_is_passed_on(redis_url: str) -> None:
    async with FakeWorker(chat_template=ALTERNATING) as worker, gateway(redis_url, [worker]) as stack:
        refused = await refusal(create(stack, chat={"messages": [SYSTEM]}))
        (field,) = refused.fields
        assert field.startswith("chat")
        assert "roles must alternate" in refused.fields[field]
        question = {"role": "user", "content": "What is it?"}
        assert (await create(stack, chat={"messages": [question]})).num_tokens > 3


async def test_ids_and_tokens_are_registered_once(stack: Stack) -> None:
    await create(stack, request_id="r")
    assert (await create(stack, request_id="r")).prefix_id == "system"
    assert (await refusal(create(stack))).code is grpc.StatusCode.ALREADY_EXISTS
    refused = await refusal(create(stack, "twin"))
    assert refused.code is grpc.StatusCode.ALREADY_EXISTS
    assert "'system'" in refused.message


async def test_the_model_is_named_where_there_are_several(redis_url: str, worker: FakeWorker) -> None:
    async with FakeWorker(model="other") as second, gateway(redis_url, [worker, second]) as stack:
        assert set((await refusal(create(stack))).fields) == {"model"}
        await create(stack, model="other")
        assert public_and_cached(await ask(stack, "acme", [1], model="tiny"))[0] == 0
        assert public_and_cached(await ask(stack, "acme", [1], model="other"))[0] == 50
