"""The audit log: who changed what, and who was refused."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from google.protobuf import message_factory

from gateway.identity.credentials import Credential
from radixgate.v1 import admin_pb2
from tests.fakes.gateway_stack import ADMIN_TOKEN, Metadata, Refusal, Stack, bearer, gateway
from tests.integration.quota_support import KillableRedis

ADMIN = bearer(ADMIN_TOKEN)
NIGHT = bearer("the-night-shifts-token")
METHODS = list(admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods)
READS = [method.name for method in METHODS if method.name.startswith(("Get", "List"))]
CHANGES = [method.name for method in METHODS if method.name not in READS]


@pytest.fixture
async def stack(redis_url: str) -> AsyncIterator[Stack]:
    async with gateway(redis_url, [], tenants=[], operators={"night-shift": "the-night-shifts-token"}) as running:
        yield running


async def call(stack: Stack, name: str, metadata: Metadata, **fields: Any) -> str:
    """Call a method and return the name of its status."""
    method = next(method for method in METHODS if method.name == name)
    request = message_factory.GetMessageClass(method.input_type)(**fields)
    try:
        await getattr(stack.admin, name)(request, metadata=metadata, timeout=10)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def entries(stack: Stack, **fields: Any) -> list[admin_pb2.AuditEntry]:
    answer = await stack.admin.ListAuditEntries(admin_pb2.ListAuditEntriesRequest(**fields), metadata=ADMIN)
    return list(answer.entries)


async def test_a_change_says_who_what_and_when(stack: Stack) -> None:
    before = time.time()
    await call(stack, "CreateTenant", NIGHT, tenant_id="acme")
    await call(stack, "SuspendTenant", ADMIN, tenant_id="acme")
    await call(stack, "UpdateTenant", ADMIN, tenant={"tenant_id": "acme"}, update_mask={"paths": ["display_name"]})
    await call(stack, "RevokeApiKey", NIGHT, key_id="0" * 16)
    told = await entries(stack)
    assert [(entry.operator, entry.method, entry.target, entry.code) for entry in told] == [
        ("night-shift", "RevokeApiKey", f"key {'0' * 16}", "NOT_FOUND"),
        ("admin", "UpdateTenant", "tenant acme", "OK"),
        ("admin", "SuspendTenant", "tenant acme", "OK"),
        ("night-shift", "CreateTenant", "tenant acme", "OK"),
    ]
    for entry in told:
        assert before - 0.01 <= entry.time.ToNanoseconds() / 1e9 <= time.time()
        assert entry.peer.startswith("ipv4:127.0.0.1:")


@pytest.mark.parametrize("name", CHANGES)
async def test_every_call_that_changes_something_is_kept_with_its_outcome(stack: Stack, name: str) -> None:
    code = await call(stack, name, ADMIN)
    assert [(entry.operator, entry.method, entry.code) for entry in await entries(stack)] == [("admin", name, code)]


@pytest.mark.parametrize("name", READS)
async def test_looking_is_not_kept(stack: Stack, name: str) -> None:
    await call(stack, name, ADMIN)
    assert await entries(stack) == []


@pytest.mark.parametrize("name", [method.name for method in METHODS])
async def test_who_is_not_recognised_is_kept_whatever_is_called(stack: Stack, name: str) -> None:
    attempts: list[Metadata] = [(), bearer("guess"), bearer(str(Credential.generate()))]
    for metadata in attempts:
        assert await call(stack, name, metadata) == "UNAUTHENTICATED"
    told = [(entry.operator, entry.method, entry.code) for entry in await entries(stack)]
    assert told == [("", name, "UNAUTHENTICATED")] * 3


async def test_a_claim_of_identity_is_kept_with_its_operator(stack: Stack) -> None:
    await call(stack, "SuspendTenant", (*ADMIN, ("x-tenant-id", "acme")), tenant_id="acme")
    assert [(entry.operator, entry.code) for entry in await entries(stack)] == [("admin", "INVALID_ARGUMENT")]


async def test_what_a_caller_wrote_is_shortened_to_one_line(stack: Stack) -> None:
    await call(stack, "SuspendTenant", ADMIN, tenant_id="a\nb" + "x" * 500)
    (entry,) = await entries(stack)
    assert entry.target == "tenant a?b" + "x" * 61


async def test_no_secret_is_in_an_entry_or_in_the_log(stack: Stack) -> None:
    with structlog.testing.capture_logs() as log:
        key = await stack.add_tenant("acme")
        await call(stack, "SuspendTenant", bearer("a-wrong-admin-token"), tenant_id="acme")
    told = str([str(entry) for entry in await entries(stack)]) + str(log)
    for secret in (key, key.rpartition("_")[2], ADMIN_TOKEN, "a-wrong-admin-token"):
        assert secret not in told
    audited = [event for event in log if event["event"] == "audit"]
    assert [(event["method"], event["operator"]) for event in audited] == [
        ("CreateTenant", "admin"),
        ("CreateApiKey", "admin"),
        ("SuspendTenant", ""),
    ]


@pytest.mark.parametrize("name", ["RevokeApiKey", "RotateApiKey"])
async def test_a_whole_key_in_the_place_of_its_id_is_kept_without_its_secret(stack: Stack, name: str) -> None:
    key = str(Credential.generate())
    with structlog.testing.capture_logs() as log:
        await call(stack, name, ADMIN, key_id=key)
    (entry,) = await entries(stack)
    assert (entry.target, entry.code) == (f"key {key[:20]}…", "NOT_FOUND")
    assert key[20:28] not in str(log)


async def test_entries_are_listed_page_by_page_newest_first_also_while_new_ones_come(stack: Stack) -> None:
    for i in range(9):
        await call(stack, "SuspendTenant", ADMIN if i % 3 else bearer("guess"), tenant_id=f"t{i}")
    seen, token = [], ""
    while True:
        request = admin_pb2.ListAuditEntriesRequest(page_size=2, page_token=token)
        answer = await stack.admin.ListAuditEntries(request, metadata=ADMIN)
        seen += [entry.target for entry in answer.entries]
        await call(stack, "SuspendTenant", ADMIN, tenant_id="later")
        token = answer.next_page_token
        if not token:
            break
    assert seen == [f"tenant t{i}" for i in reversed(range(9))]
    assert len(await entries(stack, page_size=5000)) == 9 + 5


# "?!" is no base64; the others spell 0, 00 and -1.
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"page_size": -1}, "page_size"),
        *(({"page_token": token}, "page_token") for token in ("?!", "MA==", "MDA=", "LTE=")),
    ],
)
async def test_a_bad_page_is_refused(stack: Stack, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await entries(stack, **fields)
    refusal = Refusal.of(failure.value)
    assert (refusal.code, list(refusal.fields)) == (grpc.StatusCode.INVALID_ARGUMENT, [field])


async def test_all_gateways_write_one_log(redis_url: str) -> None:
    async with gateway(redis_url, [], tenants=[]) as one, gateway(redis_url, [], tenants=[]) as two:
        await asyncio.gather(
            *(call(stack, "SuspendTenant", ADMIN, tenant_id=f"t{i}") for stack in (one, two) for i in range(20))
        )
        assert len(await entries(one)) == 40
        assert await entries(one) == await entries(two)


async def test_without_redis_a_change_fails_as_it_would_and_is_in_the_gateways_own_log(tmp_path: Path) -> None:
    with KillableRedis(tmp_path) as server:
        async with gateway(server.url, [], tenants=[]) as stack:
            server.kill()
            with structlog.testing.capture_logs() as log:
                assert await call(stack, "SuspendTenant", ADMIN, tenant_id="acme") == "UNAVAILABLE"
                assert await call(stack, "SuspendTenant", bearer("guess"), tenant_id="acme") == "UNAUTHENTICATED"
            audited = [(event["operator"], event["code"]) for event in log if event["event"] == "audit"]
            assert audited == [("admin", "UNAVAILABLE"), ("", "UNAUTHENTICATED")]
            server.start()
