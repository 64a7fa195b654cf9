"""AdminService: what is set for a tenant, what holds for it, and what changes it."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2, field_mask_pb2

from gateway.config import PolicyConfig
from gateway.policy import TenantPolicy
from radixgate.v1 import admin_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, FOUR, Refusal, Stack, bearer, gateway

ADMIN = bearer(ADMIN_TOKEN)
INVALID_ARGUMENT, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
EVERYTHING: dict[str, Any] = {
    "weight": 2.5,
    "priority": -7,
    "cache_floor_tokens": 0,
    "max_deadline": duration_pb2.Duration(seconds=1, nanos=500_000_000),
    "requests_per_minute": 60,
    "tokens_per_minute": 10**15,
    "max_concurrent_requests": 3,
    "max_queued_requests": 0,
    "models": ["tiny"],
    "adapters": ["a", "ü"],
}
FIELDS = list(EVERYTHING)


@pytest.fixture
async def stack(redis_url: str) -> AsyncIterator[Stack]:
    configured = PolicyConfig(
        default=TenantPolicy(requests_per_minute=100, priority=1, models=("tiny", "other")),
        tenants={"acme": TenantPolicy(requests_per_minute=200, weight=3.0)},
    )
    async with gateway(redis_url, [], tenants=[], policies=configured) as running:
        yield running


def policy(**fields: Any) -> admin_pb2.TenantPolicy:
    return admin_pb2.TenantPolicy(**fields)


async def create(stack: Stack, tenant_id: str = "acme", **fields: Any) -> admin_pb2.Tenant:
    request = admin_pb2.CreateTenantRequest(tenant_id=tenant_id, **fields)
    return (await stack.admin.CreateTenant(request, metadata=ADMIN)).tenant


async def update(stack: Stack, *paths: str, tenant_id: str = "acme", **fields: Any) -> admin_pb2.Tenant:
    request = admin_pb2.UpdateTenantRequest(
        tenant=admin_pb2.Tenant(tenant_id=tenant_id, **fields), update_mask=field_mask_pb2.FieldMask(paths=paths)
    )
    return (await stack.admin.UpdateTenant(request, metadata=ADMIN)).tenant


async def get(stack: Stack, tenant_id: str = "acme") -> admin_pb2.Tenant:
    return (await stack.admin.GetTenant(admin_pb2.GetTenantRequest(tenant_id=tenant_id), metadata=ADMIN)).tenant


async def refused(call: Any) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return Refusal.of(failure.value)


async def test_a_policy_is_returned_as_it_was_set_by_every_call(stack: Stack) -> None:
    made = await create(stack, policy=policy(**EVERYTHING))
    assert made.policy == policy(**EVERYTHING)
    assert made.state == admin_pb2.TENANT_STATE_ACTIVE
    assert await get(stack) == made
    listed = await stack.admin.ListTenants(admin_pb2.ListTenantsRequest(), metadata=ADMIN)
    assert list(listed.tenants) == [made]


async def test_what_holds_is_what_is_set_then_the_configuration_for_the_tenant_then_for_all(stack: Stack) -> None:
    made = await create(stack, policy=policy(priority=5))
    assert made.policy == policy(priority=5)
    assert made.effective_policy == policy(
        weight=3.0,
        priority=5,
        cache_floor_tokens=0,
        requests_per_minute=200,
        max_queued_requests=0,
        models=["other", "tiny"],
    )
    other = await create(stack, "globex")
    assert not other.policy.ListFields()
    assert (other.effective_policy.requests_per_minute, other.effective_policy.weight) == (100, 1.0)


@pytest.mark.parametrize("field", FIELDS)
async def test_the_mask_sets_and_unsets_each_field_alone(stack: Stack, field: str) -> None:
    await create(stack, display_name="Acme")
    other = "priority" if field == "weight" else "weight"
    given = policy(**{field: EVERYTHING[field], other: EVERYTHING[other]})
    updated = await update(stack, f"policy.{field}", display_name="ignored", policy=given)
    assert updated.policy == policy(**{field: EVERYTHING[field]})
    assert updated.display_name == "Acme"
    assert await get(stack) == updated
    updated = await update(stack, f"policy.{field}")
    assert not updated.policy.ListFields()


async def test_the_whole_policy_is_replaced_when_the_mask_names_it(stack: Stack) -> None:
    await create(stack, display_name="Acme", policy=policy(**EVERYTHING))
    updated = await update(stack, "policy", policy=policy(weight=9.0))
    assert (updated.display_name, updated.policy) == ("Acme", policy(weight=9.0))
    updated = await update(stack, "display_name", "policy", display_name="New")
    assert (updated.display_name, updated.policy) == ("New", policy())
    assert (await update(stack, "display_name")).display_name == ""


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        ([], "is empty"),
        (["tenant_id"], "'tenant_id'"),
        (["state", "display_name"], "'state'"),
        (["policy.no_such"], "'policy.no_such'"),
        (["effective_policy.weight"], "'effective_policy.weight'"),
        (["*"], "'*'"),
        (["policy.max_deadline_s"], "'policy.max_deadline_s'"),
    ],
)
async def test_a_mask_that_names_nothing_to_change_is_refused(stack: Stack, paths: list[str], told: str) -> None:
    made = await create(stack)
    refusal = await refused(update(stack, *paths, display_name="New", policy=policy(weight=2.0)))
    assert (refusal.code, list(refusal.fields)) == (INVALID_ARGUMENT, ["update_mask"])
    assert told in refusal.fields["update_mask"]
    assert await get(stack) == made


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"weight": 0.0}, "weight", "is 0; must be at least 0.001 and at most 1000"),
    ({"weight": float("nan")}, "weight", "is nan; must be at least 0.001 and at most 1000"),
    ({"weight": 1000.5}, "weight", "is 1000.5; must be at least 0.001 and at most 1000"),
    ({"priority": 101}, "priority", "is 101; must be at least -100 and at most 100"),
    ({"cache_floor_tokens": -1}, "cache_floor_tokens", "is -1; must be at least 0 and at most 1000000000000"),
    ({"max_deadline": duration_pb2.Duration()}, "max_deadline", "is 0 s; must be more than 0"),
    ({"max_deadline": duration_pb2.Duration(seconds=-1)}, "max_deadline", "is -1 s; must be more than 0"),
    ({"max_deadline": duration_pb2.Duration(seconds=1, nanos=-1)}, "max_deadline", "is no duration"),
    ({"requests_per_minute": 0}, "requests_per_minute", "is 0; must be at least 1"),
    ({"tokens_per_minute": -5}, "tokens_per_minute", "is -5; must be at least 1"),
    ({"max_concurrent_requests": 0}, "max_concurrent_requests", "is 0; must be at least 1 and at most 1000000"),
    ({"max_queued_requests": -1}, "max_queued_requests", "is -1; must be at least 0"),
    ({"models": ["m"] * 65}, "models", "has 65 names; at most 64"),
    ({"models": ["m", ""]}, "models[1]", "has 0 characters; must have 1 to 128"),
    ({"adapters": ["a" * 129]}, "adapters[0]", "has 129 characters; must have 1 to 128"),
]


@pytest.mark.parametrize(("fields", "field", "told"), BAD, ids=lambda value: str(value)[:40])
async def test_a_bad_policy_is_refused_with_field_and_limit(
    stack: Stack, fields: dict[str, Any], field: str, told: str
) -> None:
    refusal = await refused(create(stack, policy=policy(**fields)))
    assert (refusal.code, list(refusal.fields)) == (INVALID_ARGUMENT, [f"policy.{field}"])
    assert refusal.fields[f"policy.{field}"].startswith(told)
    await create(stack)
    refusal = await refused(update(stack, "policy", policy=policy(**fields)))
    assert list(refusal.fields) == [f"tenant.policy.{field}"]
    name = field.partition("[")[0]
    refusal = await refused(update(stack, f"policy.{name}", policy=policy(**fields)))
    assert list(refusal.fields) == [f"tenant.policy.{field}"]
    assert not (await get(stack)).policy.ListFields()


async def test_all_faults_of_a_tenant_are_told_at_once(stack: Stack) -> None:
    bad = policy(weight=0.0, priority=101, models=[""])
    refusal = await refused(create(stack, "Bad", display_name="n" * 129, policy=bad))
    assert set(refusal.fields) == {
        "tenant_id",
        "display_name",
        "policy.weight",
        "policy.priority",
        "policy.models[0]",
    }
    await create(stack)
    refusal = await refused(update(stack, "display_name", "policy", "x", display_name="n" * 129, policy=bad))
    assert set(refusal.fields) == {
        "update_mask",
        "tenant.display_name",
        "tenant.policy.weight",
        "tenant.policy.priority",
        "tenant.policy.models[0]",
    }


async def test_states_change_however_often_and_tell_the_tenant(stack: Stack) -> None:
    await create(stack, display_name="Acme", policy=policy(weight=2.0))
    for _ in range(2):
        suspended = await stack.admin.SuspendTenant(admin_pb2.SuspendTenantRequest(tenant_id="acme"), metadata=ADMIN)
        assert suspended.tenant.state == admin_pb2.TENANT_STATE_SUSPENDED
        assert suspended.tenant == await get(stack)
    for _ in range(2):
        resumed = await stack.admin.ResumeTenant(admin_pb2.ResumeTenantRequest(tenant_id="acme"), metadata=ADMIN)
        assert resumed.tenant.state == admin_pb2.TENANT_STATE_ACTIVE
    assert (resumed.tenant.display_name, resumed.tenant.policy) == ("Acme", policy(weight=2.0))


async def test_a_deleted_tenant_says_how_many_keys_went_with_it(stack: Stack) -> None:
    await stack.add_tenant("acme")
    await stack.add_key("acme")
    request = admin_pb2.DeleteTenantRequest(tenant_id="acme")
    assert (await stack.admin.DeleteTenant(request, metadata=ADMIN)).deleted_api_keys == 2
    assert (await refused(stack.admin.DeleteTenant(request, metadata=ADMIN))).code is NOT_FOUND


async def test_what_does_not_exist_cannot_be_changed(stack: Stack) -> None:
    calls = [
        update(stack, "display_name"),
        stack.admin.SuspendTenant(admin_pb2.SuspendTenantRequest(tenant_id="acme"), metadata=ADMIN),
        stack.admin.ResumeTenant(admin_pb2.ResumeTenantRequest(tenant_id="acme"), metadata=ADMIN),
        stack.admin.DeleteTenant(admin_pb2.DeleteTenantRequest(tenant_id="acme"), metadata=ADMIN),
    ]
    for call in calls:
        refusal = await refused(call)
        assert (refusal.code, refusal.reason) == (NOT_FOUND, "TENANT_NOT_FOUND")


async def test_a_changed_policy_holds_for_the_next_request_on_every_gateway(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as one, gateway(redis_url, [worker], tenants=[]) as two:
        two.keys.update(one.keys)
        await two.generate(**FOUR, priority=-3)
        await update(one, "policy.priority", policy=policy(priority=-5))
        refusal = await two.refused(**FOUR, priority=-3)
        assert (refusal.code, list(refusal.fields)) == (INVALID_ARGUMENT, ["priority"])
        await update(two, "policy.priority")
        await one.generate(**FOUR, priority=-3)
