"""Tokens of an identity provider in front of a whole gateway: its keys over HTTP, changed, lost and found again."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from gateway.config import JwtConfig
from radixgate.v1 import admin_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, FOUR, MANY, Stack, bearer, gateway, until
from tests.fakes.identity_provider import (
    AUDIENCE,
    ISSUER,
    KeyServer,
    key_server,
    key_set,
    private_key,
    public_jwk,
    token,
)

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@pytest.fixture
def provider() -> Iterator[KeyServer]:
    with key_server() as server:
        server.document = key_set(public_jwk(private_key("ES256"), kid="first"))
        yield server


@pytest.fixture
async def stack(redis_url: str, worker: FakeWorker, provider: KeyServer) -> AsyncIterator[Stack]:
    config = JwtConfig(jwks_url=provider.url, issuer=ISSUER, audience=AUDIENCE, refresh_s=0.05, leeway_s=0.0)
    async with gateway(redis_url, [worker], tenants=["acme", "globex"], jwt=config) as running:
        yield running


def bring(stack: Stack, text: str) -> None:
    """Have acme's calls bring this."""
    stack.keys["acme"] = text


async def test_a_token_is_as_good_as_a_key_and_shares_the_tenants_cache(stack: Stack) -> None:
    first = await stack.generate(**FOUR)
    bring(stack, token())
    second = await stack.generate(**FOUR)
    assert second.token_ids == first.token_ids
    assert second.usage.cached.device > 0
    bring(stack, token(tenant="globex"))
    assert (await stack.generate(**FOUR)).usage.cached.device == 0
    assert [tenant for method, _, tenant in stack.observer.finished if "Generate" in method] == [
        "acme",
        "acme",
        "globex",
    ]


async def test_bad_tokens_and_bad_keys_get_answers_that_tell_nothing(stack: Stack) -> None:
    answers = []
    for text in (token(exp=time.time() - 1), token(tenant="initech"), token(private_key("ES256", "stranger"))):
        bring(stack, text)
        answers.append(await stack.refused(**FOUR))
    assert answers[0] == answers[1] == answers[2]
    assert (answers[0].code, answers[0].reason) == (UNAUTHENTICATED, "CREDENTIAL_REFUSED")
    assert stack.observer.auth_failures == ["token_expired", "token_tenant", "token_signature"]


async def test_a_token_is_no_operators(stack: Stack) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.admin.ListTenants(admin_pb2.ListTenantsRequest(), metadata=bearer(token(sub="admin")))
    assert caught.value.code() is UNAUTHENTICATED


async def test_a_model_that_the_token_does_not_name_does_not_exist_for_its_bearer(stack: Stack) -> None:
    bring(stack, token(models=["another"]))
    narrowed = await stack.refused(model="tiny", **FOUR)
    bring(stack, token(models=["tiny"]))
    assert len((await stack.generate(model="tiny", **FOUR)).token_ids) == 4
    assert narrowed.code is grpc.StatusCode.NOT_FOUND


async def test_keys_change_while_the_gateway_runs(stack: Stack, provider: KeyServer) -> None:
    fresh = private_key("ES256", "fresh")
    provider.document = key_set(public_jwk(fresh, kid="fresh"))
    asked = provider.requests
    await until(lambda: provider.requests > asked + 1)
    bring(stack, token(fresh, header={"kid": "fresh"}))
    assert len((await stack.generate(**FOUR)).token_ids) == 4
    bring(stack, token())
    assert (await stack.refused(**FOUR)).code is UNAUTHENTICATED


async def test_while_the_provider_is_away_known_keys_go_on(stack: Stack, provider: KeyServer) -> None:
    bring(stack, token())
    await stack.generate(**FOUR)
    provider.status = 500
    asked = provider.requests
    await until(lambda: provider.requests > asked + 2)
    await stack.generate(**FOUR)


async def test_api_keys_need_no_provider(redis_url: str, worker: FakeWorker) -> None:
    config = JwtConfig(jwks_url="http://127.0.0.1:9/keys", issuer=ISSUER, audience=AUDIENCE)
    async with gateway(redis_url, [worker], jwt=config) as stack:
        await stack.generate(**FOUR)
        bring(stack, token())
        refusal = await stack.refused(**FOUR)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "TOKEN_KEYS_UNAVAILABLE")


async def test_without_a_configured_provider_a_token_is_a_bad_key(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as stack:
        bring(stack, token())
        assert (await stack.refused(**FOUR)).code is UNAUTHENTICATED
        assert stack.observer.auth_failures == ["malformed"]


async def test_a_stream_outlives_the_token_that_began_it(stack: Stack, worker: FakeWorker) -> None:
    worker.hold()
    expires_at = time.time() + 1.0
    bring(stack, token(exp=expires_at))
    running = asyncio.create_task(stack.generate(**MANY))
    await until(lambda: len(worker.submits) == 1)
    await until(lambda: time.time() > expires_at)
    assert (await stack.refused(**FOUR)).code is UNAUTHENTICATED
    worker.go()
    assert len((await running).token_ids) == 400


async def test_a_suspended_tenants_tokens_are_refused_and_its_streams_end(stack: Stack, worker: FakeWorker) -> None:
    worker.hold()
    bring(stack, token())
    running = asyncio.create_task(stack.refused(**MANY))
    await until(lambda: len(worker.submits) == 1)
    admin: Any = bearer(ADMIN_TOKEN)
    await stack.admin.SuspendTenant(admin_pb2.SuspendTenantRequest(tenant_id="acme"), metadata=admin)
    suspended_at = time.monotonic()
    ended = await running
    assert time.monotonic() - suspended_at < 1.0
    assert (ended.code, ended.reason) == (grpc.StatusCode.PERMISSION_DENIED, "TENANT_SUSPENDED")
    refusal = await stack.refused(**FOUR)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.PERMISSION_DENIED, "TENANT_SUSPENDED")
