"""Who gets in: keys, the admin token, claims of identity, and the few things that need no credential."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor

from gateway.identity.credentials import Credential
from radixgate.v1 import admin_pb2, inference_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, Metadata, Refusal, Stack, bearer, gateway

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
SAMPLING = {"max_new_tokens": 1}
METHODS = [
    method
    for file in (inference_pb2.DESCRIPTOR, admin_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
]


@pytest.fixture
async def stack(redis_url: str, worker: FakeWorker) -> AsyncIterator[Stack]:
    async with gateway(redis_url, [worker], tenants=["acme", "globex"]) as running:
        yield running


async def call(stack: Stack, method: MethodDescriptor, metadata: Metadata) -> Refusal | None:
    """Call any method with an empty request; return how it failed, if it did."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    request = message_factory.GetMessageClass(method.input_type)()
    answer = message_factory.GetMessageClass(method.output_type)
    try:
        if method.server_streaming:
            stream: Any = stack.channel.unary_stream(
                path, request_serializer=lambda m: m.SerializeToString(), response_deserializer=answer.FromString
            )
            async for _ in stream(request, metadata=metadata, timeout=10):
                pass
        else:
            unary: Any = stack.channel.unary_unary(
                path, request_serializer=lambda m: m.SerializeToString(), response_deserializer=answer.FromString
            )
            await unary(request, metadata=metadata, timeout=10)
    except grpc.aio.AioRpcError as error:
        return Refusal.of(error)
    return None


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_no_method_answers_without_the_right_credential(stack: Stack, method: MethodDescriptor) -> None:
    tenants_own = method.containing_service.name == "InferenceService"
    others = bearer(ADMIN_TOKEN if tenants_own else stack.keys["acme"])
    for metadata in ((), bearer("rg_x"), bearer(str(Credential.generate())), others, (("authorization", "x"),)):
        refusal = await call(stack, method, metadata)
        assert refusal is not None
        assert refusal.code is UNAUTHENTICATED, metadata
        assert refusal.reason == "CREDENTIAL_REFUSED"
    served = await call(stack, method, bearer(stack.keys["acme"] if tenants_own else ADMIN_TOKEN))
    assert served is None or served.code is not UNAUTHENTICATED


async def test_two_credentials_are_none(stack: Stack) -> None:
    refusal = await stack.refused(text="Hi", metadata=bearer(stack.keys["globex"]))
    assert refusal.code is UNAUTHENTICATED


async def test_wrong_and_revoked_keys_get_the_same_answer(stack: Stack) -> None:
    good = stack.keys["acme"]
    await revoke(stack, good)
    answers = []
    for key in (good, good[:-1] + ("0" if good[-1] != "0" else "1"), str(Credential.generate())):
        stack.keys["acme"] = key
        answers.append(await stack.refused(text="Hi"))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0].code is UNAUTHENTICATED
    assert stack.observer.auth_failures == ["revoked", "wrong_secret", "unknown"]


async def test_a_revoked_key_is_refused_from_the_moment_the_call_returns_on_every_gateway(
    redis_url: str, worker: FakeWorker
) -> None:
    async with gateway(redis_url, [worker]) as one, gateway(redis_url, [worker], tenants=[]) as two:
        for _ in range(5):
            two.keys["acme"] = await one.add_key("acme")
            await two.generate(text="Hi", sampling=SAMPLING)
            await revoke(one, two.keys["acme"])
            assert (await two.refused(text="Hi", sampling=SAMPLING)).code is UNAUTHENTICATED


async def test_revoking_one_key_leaves_the_tenants_others_and_the_cache_alone(stack: Stack) -> None:
    old = stack.keys["acme"]
    await stack.generate(text="The quick brown fox", sampling=SAMPLING)
    await stack.add_key("acme")
    stack.keys["acme"], new = old, await stack.add_key("acme")
    await revoke(stack, old)
    stack.keys["acme"] = new
    again = await stack.generate(text="The quick brown fox", sampling=SAMPLING)
    assert again.usage.cached.device > 0


async def revoke(stack: Stack, key: str) -> None:
    credential = Credential.parse(key)
    assert credential is not None
    await stack.admin.RevokeApiKey(
        admin_pb2.RevokeApiKeyRequest(key_id=credential.key_id), metadata=bearer(ADMIN_TOKEN)
    )


# ------------------------------------------------------------------------------------------------- claims of identity


def spellings() -> list[str]:
    names = ["tenant", "tenant-id", "tenant_id", "tenantid", "x-tenant", "x-tenant-id", "x.tenant", "my-tenant-name"]
    names += ["x-radixgate-tenant", "x-radixgate-anything", "radixgate-extra-key", "x-radixgate-cache-version"]
    names += ["extra-key", "extra_key", "extrakey", "x-extra-key", "cache-salt", "cache_salt", "x-cache-salt"]
    names += ["cache-key", "cache-version", "adapter-revision"]
    return names


@pytest.mark.parametrize("name", spellings())
async def test_a_claim_of_identity_in_metadata_is_refused_by_name(stack: Stack, worker: FakeWorker, name: str) -> None:
    entries: list[tuple[str, str | bytes]] = [(name, "globex"), (f"{name}-bin", b"globex")]
    for entry in entries:
        refusal = await stack.refused(text="Hi", metadata=(entry,))
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "IDENTITY_CLAIMED")
        assert list(refusal.fields) == [f"metadata[{entry[0]}]"]
    assert worker.submits == []


async def test_claims_are_refused_by_every_method_and_for_operators_too(stack: Stack) -> None:
    claim: Metadata = (("x-tenant-id", "globex"),)
    for method in METHODS:
        token = stack.keys["acme"] if method.containing_service.name == "InferenceService" else ADMIN_TOKEN
        refusal = await call(stack, method, (*bearer(token), *claim))
        assert refusal is not None
        assert refusal.reason == "IDENTITY_CLAIMED", method.name


async def test_a_claim_of_identity_in_the_request_is_refused_by_name(stack: Stack, worker: FakeWorker) -> None:
    refusal = await stack.refused(text="Hi", tenant="acme", extra_key=b"k" * 16)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert set(refusal.fields) == {"tenant", "extra_key"}
    assert worker.submits == []


async def test_ordinary_metadata_is_fine(stack: Stack) -> None:
    metadata: Metadata = (("x-request-start", "1"), ("traceparent", "00-0-0-0"), ("x-trace-bin", b"\x00"))
    assert (await stack.generate(text="Hi", metadata=metadata, sampling=SAMPLING)).token_ids


async def test_refused_callers_cost_the_server_nothing(stack: Stack, worker: FakeWorker) -> None:
    bad = [bearer(str(Credential.generate())) for _ in range(50)]
    refusals = await asyncio.gather(*(call(stack, METHODS[0], metadata) for metadata in bad))
    assert {refusal.code for refusal in refusals if refusal} == {UNAUTHENTICATED}
    assert worker.submits == []
    assert (await stack.generate(text="Hi", sampling=SAMPLING)).token_ids
    tenants = [tenant for method, code, tenant in stack.observer.finished if code == "UNAUTHENTICATED"]
    assert tenants == [""] * 50


async def test_without_an_admin_token_there_is_no_admin_service(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], tenants=[], admin_token=None) as stack:
        for method, token in itertools.product(METHODS, ["", "None", ADMIN_TOKEN]):
            if method.containing_service.name == "AdminService":
                refusal = await call(stack, method, bearer(token))
                assert refusal is not None
                assert refusal.code is grpc.StatusCode.UNIMPLEMENTED
