"""API keys over the whole stack: they expire, narrow, rotate, and can be asked for again."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import redis
from google.protobuf import duration_pb2, field_mask_pb2, timestamp_pb2

from gateway.identity.idempotency import KEPT_S
from radixgate.v1 import admin_pb2, inference_pb2, worker_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, FOUR, Refusal, Stack, bearer, gateway, until

ADMIN = bearer(ADMIN_TOKEN)
INVALID_ARGUMENT, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
DAY_S = 86_400


@pytest.fixture
async def stacks(redis_url: str, worker: FakeWorker) -> AsyncIterator[list[Stack]]:
    async with gateway(redis_url, [worker]) as one, gateway(redis_url, [worker], tenants=[]) as two:
        two.keys.update(one.keys)
        yield [one, two]


@pytest.fixture
def stack(stacks: list[Stack]) -> Stack:
    return stacks[0]


def at(seconds: float) -> timestamp_pb2.Timestamp:
    return timestamp_pb2.Timestamp(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))


async def create(stack: Stack, **fields: Any) -> admin_pb2.CreateApiKeyResponse:
    request = admin_pb2.CreateApiKeyRequest(**{"tenant_id": "acme", **fields})
    answer: admin_pb2.CreateApiKeyResponse = await stack.admin.CreateApiKey(request, metadata=ADMIN)
    return answer


async def rotate(stack: Stack, key_id: str, **fields: Any) -> admin_pb2.RotateApiKeyResponse:
    request = admin_pb2.RotateApiKeyRequest(key_id=key_id, **fields)
    answer: admin_pb2.RotateApiKeyResponse = await stack.admin.RotateApiKey(request, metadata=ADMIN)
    return answer


async def listed(stack: Stack) -> list[admin_pb2.ApiKey]:
    answer = await stack.admin.ListApiKeys(admin_pb2.ListApiKeysRequest(tenant_id="acme"), metadata=ADMIN)
    return list(answer.api_keys)


async def refused(call: Any) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return Refusal.of(failure.value)


async def serves(stack: Stack, secret: str) -> bool:
    stack.keys["probe"] = secret
    try:
        await stack.generate("probe", **FOUR)
    except grpc.aio.AioRpcError as error:
        return error.code() is not UNAUTHENTICATED
    return True


async def ends(stack: Stack, secret: str) -> None:
    """Wait until a key is refused."""
    async with asyncio.timeout(10):
        while await serves(stack, secret):
            pass


# --------------------------------------------------------------------------------------------------- expiry, narrowing


async def test_a_key_serves_until_it_expires_and_then_looks_unknown(stack: Stack) -> None:
    made = await create(stack, expire_time=at(time.time() + 1.5))
    assert await serves(stack, made.secret)
    await ends(stack, made.secret)
    assert time.time() >= made.api_key.expire_time.ToNanoseconds() / 1e9
    refusal = await stack.refused("probe", **FOUR)
    stack.keys["unknown"] = f"rg_{'0' * 16}_{'0' * 64}"
    assert refusal == await stack.refused("unknown", **FOUR)


async def test_a_key_says_all_that_was_asked_for(stack: Stack) -> None:
    expire_time = at(int(time.time()) + 1000)
    made = await create(stack, display_name="ci", expire_time=expire_time, models=["tiny"], adapters=["a", "b"])
    key = made.api_key
    assert (key.display_name, key.expire_time, key.replaces) == ("ci", expire_time, "")
    assert (list(key.models), list(key.adapters)) == (["tiny"], ["a", "b"])
    assert (await listed(stack))[-1] == key


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"expire_time": timestamp_pb2.Timestamp(seconds=1)}, "expire_time"),
        ({"expire_time": timestamp_pb2.Timestamp(seconds=-1)}, "expire_time"),
        ({"expire_time": timestamp_pb2.Timestamp(seconds=1 << 60)}, "expire_time"),
        ({"expire_time": timestamp_pb2.Timestamp(seconds=4_000_000_000, nanos=-1)}, "expire_time"),
        ({"models": ["m"] * 65}, "models"),
        ({"models": [""]}, "models[0]"),
        ({"adapters": ["a", "n" * 129]}, "adapters[1]"),
        ({"display_name": "n" * 129}, "display_name"),
    ],
)
async def test_a_bad_key_is_refused_by_its_field(stack: Stack, fields: dict[str, Any], field: str) -> None:
    before = await listed(stack)
    refusal = await refused(create(stack, **fields))
    assert (refusal.code, list(refusal.fields)) == (INVALID_ARGUMENT, [field])
    assert await listed(stack) == before


async def test_a_model_or_adapter_that_a_key_may_not_use_does_not_exist_for_it(
    stack: Stack, worker: FakeWorker
) -> None:
    worker.tell_adapters(*(worker_pb2.Adapter(name=name, revision=name * 8) for name in ("mine", "other")))
    for narrow in ({"adapters": ["mine"]}, {"adapters": ["mine"], "models": ["tiny"]}):
        stack.keys["narrow"] = (await create(stack, **narrow)).secret
        await adapter_is_there(stack, "narrow", "mine")
        forbidden = await stack.refused("narrow", adapter="other", **FOUR)
        unknown = await stack.refused("narrow", adapter="other2", **FOUR)
        assert forbidden.code is NOT_FOUND
        assert forbidden.message.replace("other", "other2") == unknown.message
        assert (forbidden.reason, forbidden.metadata.keys()) == (unknown.reason, unknown.metadata.keys())
        assert (await stack.generate(adapter="other", **FOUR)).token_ids
    stack.keys["elsewhere"] = (await create(stack, models=["another-model"])).secret
    forbidden, unknown = [await stack.refused("elsewhere", model=name, **FOUR) for name in ("tiny", "tiny2")]
    assert forbidden.code is NOT_FOUND
    assert forbidden.message.replace("tiny", "tiny2") == unknown.message
    assert await names_offered(stack, "elsewhere") == {}
    assert await names_offered(stack, "narrow") == {"tiny": ["mine"]}
    assert await names_offered(stack, "acme") == {"tiny": ["mine", "other"]}


async def test_a_model_or_adapter_that_a_tenant_may_not_use_does_not_exist_for_it(
    stacks: list[Stack], worker: FakeWorker
) -> None:
    worker.tell_adapters(*(worker_pb2.Adapter(name=name, revision=name * 8) for name in ("mine", "other")))
    one, two = stacks
    for stack in stacks:
        await adapter_is_there(stack, "acme", "mine")
    await allow(one, adapters=["mine"])
    forbidden, unknown = [await two.refused(adapter=name, **FOUR) for name in ("other", "other2")]
    assert forbidden.code is NOT_FOUND
    assert forbidden.message.replace("other", "other2") == unknown.message
    assert (await two.generate(adapter="mine", **FOUR)).token_ids
    assert await names_offered(two, "acme") == {"tiny": ["mine"]}
    await allow(one, models=["another-model"])
    assert (await two.refused(model="tiny", **FOUR)).code is NOT_FOUND
    assert (await two.refused(**FOUR)).reason == "NO_WORKER"  # none of those that it may use is there
    assert await names_offered(two, "acme") == {}
    await allow(one)
    assert await names_offered(two, "acme") == {"tiny": ["mine", "other"]}


async def allow(stack: Stack, **names: Any) -> None:
    request = admin_pb2.UpdateTenantRequest(
        tenant=admin_pb2.Tenant(tenant_id="acme", policy=admin_pb2.TenantPolicy(**names)),
        update_mask=field_mask_pb2.FieldMask(paths=["policy"]),
    )
    await stack.admin.UpdateTenant(request, metadata=ADMIN)


async def adapter_is_there(stack: Stack, tenant_id: str, adapter: str) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await stack.generate(tenant_id, adapter=adapter, **FOUR)
            except grpc.aio.AioRpcError:
                continue
            return


async def names_offered(stack: Stack, tenant_id: str) -> dict[str, list[str]]:
    answer = await stack.inference.ListModels(
        inference_pb2.ListModelsRequest(), metadata=bearer(stack.keys[tenant_id]), timeout=10
    )
    return {model.name: list(model.adapters) for model in answer.models}


# ------------------------------------------------------------------------------------------------------------ rotation


async def test_a_rotated_key_and_its_successor_both_serve_until_the_overlap_is_over(stacks: list[Stack]) -> None:
    one, two = stacks
    old = await create(one, display_name="ci", models=["tiny"], adapters=["a"])
    answer = await rotate(two, old.api_key.key_id, overlap=duration_pb2.Duration(seconds=2))
    new = answer.api_key
    assert (new.tenant_id, new.display_name, new.replaces) == ("acme", "ci", old.api_key.key_id)
    assert (list(new.models), list(new.adapters), new.HasField("expire_time")) == (["tiny"], ["a"], False)
    assert new.key_id != old.api_key.key_id
    assert answer.replaced.key_id == old.api_key.key_id
    overlap_ms = answer.replaced.expire_time.ToMilliseconds() - new.create_time.ToMilliseconds()
    assert overlap_ms == 2000
    for stack in stacks:
        assert await serves(stack, old.secret)
        assert await serves(stack, answer.secret)
    await ends(one, old.secret)
    for stack in stacks:
        assert not await serves(stack, old.secret)
        assert await serves(stack, answer.secret)
    assert (await listed(one))[-2:] == [answer.replaced, new]


async def test_the_overlap_is_a_day_unless_something_else_is_asked_for(stack: Stack) -> None:
    for fields, seconds in (({}, DAY_S), ({"overlap": duration_pb2.Duration()}, 0)):
        key_id = (await create(stack)).api_key.key_id
        answer = await rotate(stack, key_id, expire_time=at(4_000_000_000), **fields)
        left_ms = answer.replaced.expire_time.ToMilliseconds() - answer.api_key.create_time.ToMilliseconds()
        assert left_ms == seconds * 1000
        assert answer.api_key.expire_time == at(4_000_000_000)


async def test_a_rotation_never_makes_the_old_key_live_longer(stack: Stack) -> None:
    soon = at(int(time.time()) + 100)
    key_id = (await create(stack, expire_time=soon)).api_key.key_id
    assert (await rotate(stack, key_id)).replaced.expire_time == soon


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"overlap": duration_pb2.Duration(seconds=-1)}, "overlap"),
        ({"overlap": duration_pb2.Duration(seconds=90 * DAY_S, nanos=1)}, "overlap"),
        ({"overlap": duration_pb2.Duration(seconds=1, nanos=-1)}, "overlap"),
        ({"expire_time": timestamp_pb2.Timestamp(seconds=1)}, "expire_time"),
    ],
)
async def test_a_bad_rotation_is_refused_and_changes_nothing(stack: Stack, fields: dict[str, Any], field: str) -> None:
    key_id = (await create(stack)).api_key.key_id
    before = await listed(stack)
    refusal = await refused(rotate(stack, key_id, **fields))
    assert (refusal.code, list(refusal.fields)) == (INVALID_ARGUMENT, [field])
    assert await listed(stack) == before


async def test_an_unknown_or_revoked_key_cannot_be_rotated(stack: Stack) -> None:
    refusal = await refused(rotate(stack, "0" * 16))
    assert (refusal.code, refusal.reason) == (NOT_FOUND, "KEY_NOT_FOUND")
    key_id = (await create(stack)).api_key.key_id
    await stack.admin.RevokeApiKey(admin_pb2.RevokeApiKeyRequest(key_id=key_id), metadata=ADMIN)
    refusal = await refused(rotate(stack, key_id))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "KEY_REVOKED")


# ---------------------------------------------------------------------------------------------------------- repetition


async def test_a_repeated_creation_makes_one_key_and_shows_it_again_on_every_gateway(stacks: list[Stack]) -> None:
    before = len(await listed(stacks[0]))
    answers = await asyncio.gather(*(create(stacks[i % 2], request_id="one") for i in range(8)))
    assert all(answer == answers[0] for answer in answers)
    assert await create(stacks[1], request_id="one") == answers[0]
    assert len(await listed(stacks[0])) == before + 1
    assert await serves(stacks[1], answers[0].secret)
    assert (await create(stacks[0], request_id="two")).secret != answers[0].secret


async def test_a_repeated_rotation_makes_one_key(stacks: list[Stack]) -> None:
    key_id = (await create(stacks[0])).api_key.key_id
    answers = await asyncio.gather(*(rotate(stacks[i % 2], key_id, request_id="one") for i in range(6)))
    assert all(answer == answers[0] for answer in answers)
    assert [key.replaces for key in await listed(stacks[0])].count(key_id) == 1
    assert await serves(stacks[0], answers[0].secret)


async def test_a_repeated_tenant_is_the_first_one_and_a_new_request_for_it_is_refused(stacks: list[Stack]) -> None:
    request = admin_pb2.CreateTenantRequest(tenant_id="new", request_id="one")
    answers = await asyncio.gather(*(stacks[i % 2].admin.CreateTenant(request, metadata=ADMIN) for i in range(6)))
    assert all(answer == answers[0] for answer in answers)
    for request_id in ("", "two"):
        other = admin_pb2.CreateTenantRequest(tenant_id="new", request_id=request_id)
        refusal = await refused(stacks[0].admin.CreateTenant(other, metadata=ADMIN))
        assert refusal.code is grpc.StatusCode.ALREADY_EXISTS
        assert refusal.reason == "ALREADY_EXISTS"


async def test_a_request_id_with_another_content_is_refused(stack: Stack) -> None:
    await create(stack, request_id="one")
    refusal = await refused(create(stack, request_id="one", display_name="other"))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")
    refusal = await refused(create(stack, request_id="x" * 129))
    assert (refusal.code, list(refusal.fields)) == (INVALID_ARGUMENT, ["request_id"])


async def test_the_store_never_holds_a_key_and_forgets_in_a_day_what_it_is_made_from(
    stack: Stack, redis_url: str
) -> None:
    made = [await create(stack), await create(stack, request_id="one")]
    made.append(await create(stack, request_id="two"))
    secrets = [answer.secret.rpartition("_")[2] for answer in made]
    with redis.Redis.from_url(redis_url) as client:
        values = [client.dump(key) or b"" for key in client.scan_iter()]
        lives = [client.ttl(key) for key in client.scan_iter("*:request:*")]
    for secret in secrets:
        assert not any(secret.encode() in value or bytes.fromhex(secret) in value for value in values)
    assert len(lives) == 2
    assert all(0 < life <= KEPT_S for life in lives)


async def test_a_creation_whose_client_has_gone_is_finished_for_its_repetition(stack: Stack) -> None:
    before = len(await listed(stack))
    calls = [asyncio.ensure_future(create(stack, request_id=f"r{i}")) for i in range(10)]
    for i, call in enumerate(calls):
        await asyncio.sleep(0.001 * i)
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    answers = [await create(stack, request_id=f"r{i}") for i in range(10)]
    assert len({answer.secret for answer in answers}) == 10
    assert len(await listed(stack)) == before + 10
    await until(lambda: not stack.app.store.idempotency._running)
