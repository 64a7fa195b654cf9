"""Who may do what over HTTP: limits of every route, claims of identity, and tenants whose time is over."""

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.config import GatewayLimits, HttpConfig
from gateway.http.routes import make_routes
from radixgate.v1 import admin_pb2
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import ADMIN_TOKEN, Stack, bearer, gateway
from tests.fakes.http_client import CHAT, Answer, ask, connected
from tests.integration.quota_support import eventually, policies, quota_state

TEXT: dict[str, Any] = {"model": "tiny", "prompt": [11, 12, 13], "max_tokens": 4}
# Every route that tenants can call: method, path, body.
ROUTES: dict[str, tuple[str, str, dict[str, Any] | bytes]] = {
    "chat": ("POST", "/v1/chat/completions", CHAT),
    "chat stream": ("POST", "/v1/chat/completions", {**CHAT, "stream": True}),
    "completion": ("POST", "/v1/completions", TEXT),
    "completion stream": ("POST", "/v1/completions", {**TEXT, "stream": True}),
    "list models": ("GET", "/v1/models", b""),
    "retrieve model": ("GET", "/v1/models/tiny", b""),
}
COSTING = [name for name, (method, _, _) in ROUTES.items() if method == "POST"]


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url, decode_responses=True) as made:
        yield made


async def call(stack: Stack, route: str, **headers: str) -> Answer:
    method, path, body = ROUTES[route]
    return await ask(stack.app.http_address, method, path, body, key=stack.keys["acme"], headers=headers)


async def served(stack: Stack, route: str) -> Answer:
    answer = await call(stack, route)
    assert answer.status == 200, answer.body
    return answer


async def over(stack: Stack, route: str, kind: str) -> Answer:
    """Make a call that a limit refuses."""
    answer = await call(stack, route)
    assert (answer.status, answer.error["type"], answer.error["code"]) == (429, kind, "rate_limit_exceeded")
    assert 0 < int(answer.headers["retry-after-ms"]) <= 1000 * int(answer.headers["retry-after"]) <= 61_000
    return answer


# ------------------------------------------------------------------------------------------ every route x every limiter


def test_no_route_of_tenants_is_left_out_here() -> None:
    nothing: Any = None  # routes are looked at, and none is served
    there = {(route.method, route.path) for route in make_routes(nothing, nothing, HttpConfig(), GatewayLimits())}
    called = {(method, path) for method, path, _ in ROUTES.values()}
    assert there == {(method, path.removesuffix("tiny")) for method, path in called}


@pytest.mark.parametrize("route", ROUTES)
async def test_requests_per_minute_hold_for_every_route(redis_url: str, worker: FakeWorker, route: str) -> None:
    async with gateway(redis_url, [worker], policies=policies(requests_per_minute=2)) as stack:
        for _ in range(2):
            await served(stack, route)
        answer = await over(stack, route, "requests")
        assert int(answer.headers["retry-after"]) > 50


@pytest.mark.parametrize("route", COSTING)
async def test_tokens_per_minute_hold_for_every_route_that_costs(
    redis_url: str, worker: FakeWorker, client: Redis, route: str
) -> None:
    async with gateway(redis_url, [worker], policies=policies(tokens_per_minute=60)) as stack:
        before = await quota_state(client)
        async with asyncio.timeout(20):
            while (await call(stack, route)).status == 200:
                before = await _another(client, before)
        await over(stack, route, "tokens")
        assert 0 < (await quota_state(client)).tokens <= 60


async def _another(client: Redis, before: Any) -> Any:
    async def changed() -> bool:
        return bool(await quota_state(client) != before)

    await eventually(changed)
    return await quota_state(client)


@pytest.mark.parametrize("route", COSTING)
async def test_what_never_fits_is_not_to_be_tried_again(redis_url: str, worker: FakeWorker, route: str) -> None:
    async with gateway(redis_url, [worker], policies=policies(tokens_per_minute=1)) as stack:
        answer = await call(stack, route)
        assert (answer.status, answer.error["type"], answer.error["code"]) == (429, "tokens", "quota_exceeded")
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers


@pytest.mark.parametrize("route", ROUTES)
async def test_places_and_the_line_hold_for_every_route(
    redis_url: str, worker: FakeWorker, client: Redis, route: str
) -> None:
    limits = policies(max_concurrent_requests=1, max_queued_requests=1)
    async with gateway(redis_url, [worker], policies=limits) as stack:
        worker.hold()
        runs = asyncio.ensure_future(served(stack, "chat"))
        await worker.until(lambda: worker.num_running == 1)
        waits = asyncio.ensure_future(served(stack, route))
        await eventually(functools.partial(_is_waiting, client, 1))
        await over(stack, route, "requests")
        worker.go()
        await asyncio.gather(runs, waits)


async def _is_waiting(client: Redis, count: int) -> bool:
    return (await quota_state(client)).waiting == count


async def test_who_goes_while_it_waits_leaves_the_line(redis_url: str, worker: FakeWorker, client: Redis) -> None:
    limits = policies(max_concurrent_requests=1, max_queued_requests=1)
    async with gateway(redis_url, [worker], policies=limits) as stack:
        worker.hold()
        runs = asyncio.ensure_future(served(stack, "chat"))
        await worker.until(lambda: worker.num_running == 1)
        async with connected(stack.app.http_address) as connection:
            key = {"authorization": f"Bearer {stack.keys['acme']}"}
            await connection.request("POST", "/v1/chat/completions", CHAT, key)
            await eventually(functools.partial(_is_waiting, client, 1))
        await eventually(functools.partial(_is_waiting, client, 0), 3)
        worker.go()
        await runs


async def test_more_prompts_than_places_take_turns(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], policies=policies(max_concurrent_requests=2)) as stack:
        body = {**TEXT, "prompt": [[11 + i] for i in range(7)], "return_token_ids": True}
        answer = await ask(stack.app.http_address, "POST", "/v1/completions", body, key=stack.keys["acme"])
        assert answer.status == 200, answer.body
        assert [choice["token_ids"] for choice in answer.json["choices"]] == [completion([11 + i], 4) for i in range(7)]


# ------------------------------------------------------------------------------------------------------------ identity


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", ["x-tenant-id", "tenant", "X-RadixGate-Tenant", "x-extra-key", "x-cache-salt"])
async def test_claims_of_identity_in_headers_are_refused_by_every_route(
    redis_url: str, worker: FakeWorker, route: str, name: str
) -> None:
    async with gateway(redis_url, [worker]) as stack:
        answer = await call(stack, route, **{name: "bolt"})
        assert (answer.status, answer.error["code"]) == (400, "identity_claimed")
        assert answer.error["param"] == name.lower()
        assert not worker.submits


@pytest.mark.parametrize("route", COSTING)
@pytest.mark.parametrize("name", ["tenant", "tenant_id", "extra_key", "cache_salt", "prompt_cache_key"])
async def test_claims_of_identity_in_bodies_are_refused_by_every_route(
    redis_url: str, worker: FakeWorker, route: str, name: str
) -> None:
    async with gateway(redis_url, [worker]) as stack:
        method, path, body = ROUTES[route]
        assert isinstance(body, dict)
        answer = await ask(stack.app.http_address, method, path, {**body, name: "x"}, key=stack.keys["acme"])
        assert (answer.status, answer.error["param"]) == (400, name)
        assert not worker.submits


async def test_the_admin_token_opens_nothing_here(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as stack:
        answer = await ask(stack.app.http_address, "GET", "/v1/models", key=ADMIN_TOKEN)
        assert answer.status == 401


async def test_tenants_share_nothing_they_have_asked(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], tenants=("acme", "bolt")) as stack:
        cached = []
        for tenant in ("acme", "acme", "bolt"):
            path = "/v1/chat/completions"
            answer = await ask(stack.app.http_address, "POST", path, CHAT, key=stack.keys[tenant])
            cached.append(answer.json["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached[0] == cached[2] == 0
        assert cached[1] > 0
        assert (await stack.generate(chat={"messages": CHAT["messages"]})).usage.cached.device == cached[1]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_suspended_tenants_requests_end_within_a_second(
    redis_url: str, worker: FakeWorker, stream: bool
) -> None:
    async with gateway(redis_url, [worker]) as stack:
        worker.hold()
        async with connected(stack.app.http_address) as connection:
            key = {"authorization": f"Bearer {stack.keys['acme']}"}
            await connection.request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 99, "stream": stream}, key)
            await worker.until(lambda: worker.num_running == 1)
            worker.step()
            if stream:
                head = await connection.head()
                assert head[0] == 200
            await stack.admin.SuspendTenant(
                admin_pb2.SuspendTenantRequest(tenant_id="acme"), metadata=bearer(ADMIN_TOKEN)
            )
            async with asyncio.timeout(1):
                if stream:
                    body = b"".join([chunk async for chunk in connection.chunks()])
                    error = Answer(200, {}, body).events[-1]["error"]
                else:
                    answer = await connection.answer()
                    assert answer.status == 403
                    error = answer.error
            assert error["code"] == "tenant_suspended"
        await worker.until(lambda: len(worker.cancels) == 1)
        assert (await call(stack, "list models")).status == 403
