"""AdminService: tenants, keys, cache versions."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import redis

from cli.admin_client import admin_client
from cli.admin_client.values import Policy
from cli.target import Target
from gateway.config import GatewayLimits
from radixgate.v1 import admin_pb2
from tests.fakes.gateway_stack import ADMIN_TOKEN, Refusal, Stack, bearer, gateway

ADMIN = bearer(ADMIN_TOKEN)


@pytest.fixture
async def stack(redis_url: str) -> AsyncIterator[Stack]:
    async with gateway(redis_url, [], tenants=[]) as running:
        yield running


async def create(stack: Stack, tenant_id: str, display_name: str = "") -> admin_pb2.Tenant:
    request = admin_pb2.CreateTenantRequest(tenant_id=tenant_id, display_name=display_name)
    return (await stack.admin.CreateTenant(request, metadata=ADMIN)).tenant


async def refused(call: Any) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return Refusal.of(failure.value)


async def test_a_tenant_is_returned_as_it_was_made(stack: Stack) -> None:
    made = await create(stack, "acme", "Acme, Inc.")
    assert (made.tenant_id, made.display_name) == ("acme", "Acme, Inc.")
    assert made.create_time.seconds > 1_700_000_000
    found = await stack.admin.GetTenant(admin_pb2.GetTenantRequest(tenant_id="acme"), metadata=ADMIN)
    assert found.tenant == made


async def test_a_tenant_is_made_once(stack: Stack) -> None:
    await create(stack, "acme")
    refusal = await refused(create(stack, "acme"))
    assert refusal.code is grpc.StatusCode.ALREADY_EXISTS


@pytest.mark.parametrize("tenant_id", ["", "Acme", "a b", "a" * 65, "ü", "a\n", "a:b", "*"])
async def test_a_tenant_id_has_a_form(stack: Stack, tenant_id: str) -> None:
    refusal = await refused(create(stack, tenant_id))
    assert (refusal.code, list(refusal.fields)) == (grpc.StatusCode.INVALID_ARGUMENT, ["tenant_id"])
    assert "1 to 64" in refusal.fields["tenant_id"]


async def test_names_for_people_have_a_bound(stack: Stack) -> None:
    refusal = await refused(create(stack, "Bad", "n" * 129))
    assert set(refusal.fields) == {"tenant_id", "display_name"}
    await create(stack, "acme")
    refusal = await refused(
        stack.admin.CreateApiKey(
            admin_pb2.CreateApiKeyRequest(tenant_id="acme", display_name="n" * 129), metadata=ADMIN
        )
    )
    assert list(refusal.fields) == ["display_name"]


async def test_tenants_are_listed_page_by_page(stack: Stack) -> None:
    ids = [f"t{i:02d}" for i in range(7)]
    for tenant_id in reversed(ids):
        await create(stack, tenant_id)
    pages, token = [], ""
    while True:
        request = admin_pb2.ListTenantsRequest(page_size=3, page_token=token)
        answer = await stack.admin.ListTenants(request, metadata=ADMIN)
        pages.append([tenant.tenant_id for tenant in answer.tenants])
        token = answer.next_page_token
        if not token:
            break
    assert pages == [ids[:3], ids[3:6], ids[6:]]
    everything = await stack.admin.ListTenants(admin_pb2.ListTenantsRequest(page_size=5000), metadata=ADMIN)
    assert ([tenant.tenant_id for tenant in everything.tenants], everything.next_page_token) == (ids, "")


@pytest.mark.parametrize(
    ("request_", "field"), [({"page_size": -1}, "page_size"), ({"page_token": "?!"}, "page_token")]
)
async def test_a_bad_page_is_refused(stack: Stack, request_: dict[str, Any], field: str) -> None:
    refusal = await refused(stack.admin.ListTenants(admin_pb2.ListTenantsRequest(**request_), metadata=ADMIN))
    assert (refusal.code, list(refusal.fields)) == (grpc.StatusCode.INVALID_ARGUMENT, [field])


LONG = [f"{i:02}" + "ü" * 126 for i in range(64)]  # as long as the names of a policy or a key can be


async def test_pages_of_large_entries_end_before_they_are_too_large_to_send(redis_url: str) -> None:
    limits = GatewayLimits(max_message_bytes=65_536)
    async with gateway(redis_url, [], tenants=[], limits=limits) as stack:
        policy = admin_pb2.TenantPolicy(models=LONG)
        for tenant_id in ("a", "b", "c"):
            await stack.admin.CreateTenant(
                admin_pb2.CreateTenantRequest(tenant_id=tenant_id, policy=policy), metadata=ADMIN
            )
            await stack.admin.CreateApiKey(
                admin_pb2.CreateApiKeyRequest(tenant_id="a", display_name=tenant_id, models=LONG), metadata=ADMIN
            )
        tenants: list[str] = []
        keys: list[str] = []
        token = None
        while token != "":
            request = admin_pb2.ListTenantsRequest(page_token=token or "")
            answer = await stack.admin.ListTenants(request, metadata=ADMIN)
            tenants += [tenant.tenant_id for tenant in answer.tenants]
            token = answer.next_page_token
        token = None
        while token != "":
            asked = admin_pb2.ListApiKeysRequest(tenant_id="a", page_token=token or "")
            page = await stack.admin.ListApiKeys(asked, metadata=ADMIN)
            keys += [key.display_name for key in page.api_keys]
            token = page.next_page_token
        assert (tenants, keys) == (["a", "b", "c"], ["a", "b", "c"])


async def test_the_operators_client_goes_through_all_pages(redis_url: str) -> None:
    limits = GatewayLimits(max_message_bytes=65_536)
    async with gateway(redis_url, [], tenants=[], limits=limits) as stack:
        address = stack.app.address

        def listed() -> tuple[list[str], list[str]]:
            with admin_client(Target(address), ADMIN_TOKEN) as client:
                for name in ("a", "b", "c"):
                    client.tenants.create(name, policy=Policy(models=tuple(LONG)))
                    client.keys.create("a", name, models=LONG)
                return (
                    [tenant.tenant_id for tenant in client.tenants.list()],
                    [key.display_name for key in client.keys.list("a")],
                )

        assert await asyncio.to_thread(listed) == (["a", "b", "c"], ["a", "b", "c"])


async def test_an_answer_that_is_too_large_to_send_is_refused_in_words(redis_url: str) -> None:
    limits = GatewayLimits(max_message_bytes=65_536)
    async with gateway(redis_url, [], tenants=[], limits=limits) as stack:
        both = admin_pb2.TenantPolicy(models=LONG, adapters=LONG)
        refusal = await refused(
            stack.admin.CreateTenant(admin_pb2.CreateTenantRequest(tenant_id="acme", policy=both), metadata=ADMIN)
        )
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "ANSWER_TOO_LARGE")
        assert "at most 65536 are sent" in refusal.message
        assert ("AdminService/CreateTenant", "RESOURCE_EXHAUSTED", "") in stack.observer.finished


@pytest.mark.parametrize(
    ("request_", "field"), [({"page_size": -1}, "page_size"), ({"page_token": "YQ=="}, "page_token")]
)
async def test_a_bad_page_of_keys_is_refused(stack: Stack, request_: dict[str, Any], field: str) -> None:
    await create(stack, "acme")
    request = admin_pb2.ListApiKeysRequest(tenant_id="acme", **request_)
    refusal = await refused(stack.admin.ListApiKeys(request, metadata=ADMIN))
    assert (refusal.code, list(refusal.fields)) == (grpc.StatusCode.INVALID_ARGUMENT, [field])


async def test_a_tenant_has_several_keys_and_only_making_one_shows_its_secret(stack: Stack) -> None:
    await create(stack, "acme")
    made = [
        await stack.admin.CreateApiKey(
            admin_pb2.CreateApiKeyRequest(tenant_id="acme", display_name=name), metadata=ADMIN
        )
        for name in ("laptop", "server")
    ]
    assert len({answer.secret for answer in made}) == 2
    listed = await stack.admin.ListApiKeys(admin_pb2.ListApiKeysRequest(tenant_id="acme"), metadata=ADMIN)
    assert list(listed.api_keys) == [answer.api_key for answer in made]
    for answer in made:
        assert answer.secret.startswith(f"rg_{answer.api_key.key_id}_")
        assert answer.secret.rpartition("_")[2].encode() not in listed.SerializeToString()


async def test_the_store_does_not_know_the_secrets(stack: Stack, redis_url: str) -> None:
    secret = (await stack.add_tenant("acme")).rpartition("_")[2]
    with redis.Redis.from_url(redis_url) as client:
        values: list[bytes] = [client.dump(key) or b"" for key in client.scan_iter()]
    assert values
    assert not any(secret.encode() in value or bytes.fromhex(secret) in value for value in values)


async def test_a_revoked_key_says_when_and_revoking_again_changes_nothing(stack: Stack) -> None:
    key_id = (await stack.add_tenant("acme")).split("_")[1]
    request = admin_pb2.RevokeApiKeyRequest(key_id=key_id)
    first = (await stack.admin.RevokeApiKey(request, metadata=ADMIN)).api_key
    assert first.HasField("revoke_time")
    assert (await stack.admin.RevokeApiKey(request, metadata=ADMIN)).api_key == first
    listed = await stack.admin.ListApiKeys(admin_pb2.ListApiKeysRequest(tenant_id="acme"), metadata=ADMIN)
    assert list(listed.api_keys) == [first]


async def test_every_invalidation_raises_the_version(stack: Stack) -> None:
    version = (await create(stack, "acme")).cache_version
    seen = [version]
    for adapter in ("", "", "lora", "lora", ""):
        request = admin_pb2.InvalidateCacheRequest(tenant_id="acme", adapter=adapter)
        seen.append((await stack.admin.InvalidateCache(request, metadata=ADMIN)).cache_version)
    assert seen == [version, version + 1, version + 2, version + 3, version + 4, version + 3]
    found = await stack.admin.GetTenant(admin_pb2.GetTenantRequest(tenant_id="acme"), metadata=ADMIN)
    assert found.tenant.cache_version == version + 3


async def test_what_does_not_exist_is_not_found(stack: Stack) -> None:
    calls = [
        stack.admin.GetTenant(admin_pb2.GetTenantRequest(tenant_id="nobody"), metadata=ADMIN),
        stack.admin.CreateApiKey(admin_pb2.CreateApiKeyRequest(tenant_id="nobody"), metadata=ADMIN),
        stack.admin.ListApiKeys(admin_pb2.ListApiKeysRequest(tenant_id="nobody"), metadata=ADMIN),
        stack.admin.RevokeApiKey(admin_pb2.RevokeApiKeyRequest(key_id="nobody"), metadata=ADMIN),
        stack.admin.InvalidateCache(admin_pb2.InvalidateCacheRequest(tenant_id="nobody"), metadata=ADMIN),
    ]
    for call in calls:
        assert (await refused(call)).code is grpc.StatusCode.NOT_FOUND
