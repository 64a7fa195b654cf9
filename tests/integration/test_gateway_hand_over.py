"""What a tenant's policy says of scheduling travels to the worker, and no client gets more than that."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf import field_mask_pb2

from gateway.config import PolicyConfig
from gateway.policy import TenantPolicy
from radixgate.v1 import admin_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, FOUR, Stack, bearer, gateway
from tests.fakes.http_client import CHAT, Answer, ask

POLICY = TenantPolicy(weight=2.5, priority=7, cache_floor_tokens=128, max_deadline_s=5.0)
FIELDS = ("weight", "priority", "cache_floor_tokens")


@pytest.fixture
async def stack(redis_url: str, worker: FakeWorker) -> AsyncIterator[Stack]:
    policies = PolicyConfig(tenants={"acme": POLICY})
    async with gateway(redis_url, [worker], tenants=["acme", "globex"], policies=policies) as running:
        yield running


def handed_over(worker: FakeWorker) -> tuple[Any, ...]:
    return tuple(getattr(worker.submits[-1], field) for field in FIELDS)


async def chat(stack: Stack, more: dict[str, Any] | None = None, timeout_ms: str | None = None) -> Answer:
    body = {**CHAT, **(more or {})}
    headers = {} if timeout_ms is None else {"x-request-timeout-ms": timeout_ms}
    return await ask(
        stack.app.http_address, "POST", "/v1/chat/completions", body, key=stack.keys["acme"], headers=headers
    )


async def test_what_the_policy_gives_reaches_the_worker_over_grpc_and_http(stack: Stack, worker: FakeWorker) -> None:
    await stack.generate("acme", **FOUR)
    assert handed_over(worker) == (2.5, 7, 128)
    assert (await chat(stack)).status == 200
    assert handed_over(worker) == (2.5, 7, 128)
    assert all(0 < submit.timeout_ms <= 5_000 for submit in worker.submits)


async def test_a_tenant_without_a_policy_is_like_all_others(stack: Stack, worker: FakeWorker) -> None:
    await stack.generate("globex", **FOUR)
    assert handed_over(worker) == (1.0, 0, 0)


async def test_a_request_may_ask_for_less_than_its_tenants_priority_and_never_for_more(
    stack: Stack, worker: FakeWorker
) -> None:
    await stack.generate("acme", priority=-3, **FOUR)
    assert handed_over(worker) == (2.5, -3, 128)
    refused = await stack.refused("acme", priority=8, **FOUR)
    assert (refused.code, set(refused.fields)) == (grpc.StatusCode.INVALID_ARGUMENT, {"priority"})
    assert (await chat(stack, {"priority": -3})).status == 200
    assert handed_over(worker) == (2.5, -3, 128)
    answer = await chat(stack, {"priority": 8})
    assert (answer.status, answer.error["param"]) == (400, "priority")
    assert len(worker.submits) == 2


async def test_a_deadline_is_the_shorter_of_the_clients_and_the_tenants(stack: Stack, worker: FakeWorker) -> None:
    await stack.generate("acme", timeout=60.0, **FOUR)
    assert 3_000 < worker.submits[-1].timeout_ms <= 5_000
    await stack.generate("acme", timeout=2.0, **FOUR)
    assert 0 < worker.submits[-1].timeout_ms <= 2_100  # gRPC rounds deadlines on the wire
    await chat(stack, timeout_ms="60000")
    assert 3_000 < worker.submits[-1].timeout_ms <= 5_000
    await chat(stack, timeout_ms="2000")
    assert 0 < worker.submits[-1].timeout_ms <= 2_000


@pytest.mark.parametrize("name", ["weight", "cache_floor_tokens", "max_deadline_s"])
async def test_over_http_there_is_no_field_for_the_rest(stack: Stack, worker: FakeWorker, name: str) -> None:
    answer = await chat(stack, {name: 100})
    assert (answer.status, answer.error["param"]) == (400, name)
    assert not worker.submits


async def test_a_change_of_the_policy_holds_for_the_next_request(stack: Stack, worker: FakeWorker) -> None:
    await stack.generate("acme", **FOUR)
    tenant = admin_pb2.Tenant(tenant_id="acme", policy=admin_pb2.TenantPolicy(weight=4.0, priority=0))
    mask = field_mask_pb2.FieldMask(paths=["policy.weight", "policy.priority"])
    request = admin_pb2.UpdateTenantRequest(tenant=tenant, update_mask=mask)
    await stack.admin.UpdateTenant(request, metadata=bearer(ADMIN_TOKEN), timeout=10)
    await stack.generate("acme", **FOUR)
    assert handed_over(worker) == (4.0, 0, 128)
