"""What clients do leaves a gateway as it was: no breaker opens, nothing is kept beyond its bound. Over a real worker
process that simulates; the gateway runs here, so that one can look into it.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest

from benchmarks.fleet_client import FleetClient, tokens_request
from gateway.app import GatewayApp
from gateway.config import RoutingConfig, WorkerLinkConfig
from gateway.control.namespaces import _MAX_KNOWN
from gateway.identity.remembering import MAX_REMEMBERED
from gateway.routing.popularity import MAX_REMEMBERED as MAX_POPULAR
from metrics.bounds import Bounds
from metrics.gateway import GatewayMetrics
from tests.e2e.fleet import Fleet, FleetPlan, running_fleet
from tests.e2e.growth import grown, kept
from tests.fakes.gateway_stack import RecordingObserver, Stack, channel_to, config_for, gateway

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

VOCABULARY = 1 << 16
MAX_PAGES = 1024
NUM_TENANTS = 200

# Everything that is kept by tenant, key or prompt has its bound. Whatever else grows with them has none.
BOUNDS = {
    "_read": MAX_REMEMBERED,  # tenants, and keys
    "_known": _MAX_KNOWN,  # namespaces
    "_uses": MAX_POPULAR,  # beginnings of prompts
    "_pages": MAX_PAGES,  # of the index
    "_places[]": MAX_PAGES,
    "_batches": 10_000,  # of usage: those of some minutes
    "_candidates": 4 * Bounds().tenants,  # for labels of metrics
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    settings = [
        "worker.cache.num_slots=8192",
        "worker.engine.max_running=4",
        "worker.engine.max_waiting=4",
        f"worker.simulation.vocab_size={VOCABULARY}",
        "worker.simulation.step_s=0.001",
        'log.level="warning"',
    ]
    with running_fleet(tmp_path_factory.mktemp("bounds"), FleetPlan(1, 0, settings)) as running:
        yield running


# What clients get wrong. The last ones only a worker can tell.
MALFORMED: dict[str, dict[str, Any]] = {
    "unknown model": {"text": "Hi", "model": "gpt-17"},
    "unknown adapter": {"text": "Hi", "adapter": "poet"},
    "no prompt": {},
    "empty text": {"text": ""},
    "empty chat": {"chat": {}},
    "unknown role": {"chat": {"messages": [{"role": "king", "content": "Hi"}]}},
    "no tokens": {"tokens": {}},
    "token beyond the vocabulary": {"tokens": {"token_ids": [1, VOCABULARY]}},
    "negative token": {"tokens": {"token_ids": [-1]}},
    "prompt beyond the pool": {"tokens": {"token_ids": [7] * 9000}},
    "output beyond the pool": {"text": "Hi", "sampling": {"max_new_tokens": 9000}},
    "negative temperature": {"text": "Hi", "sampling": {"temperature": -1}},
    "temperature that is no number": {"text": "Hi", "sampling": {"temperature": float("nan")}},
    "top_p 2": {"text": "Hi", "sampling": {"top_p": 2}},
    "no new tokens": {"text": "Hi", "sampling": {"max_new_tokens": 0}},
    "1,000 completions": {"text": "Hi", "sampling": {"n": 1000}},
    "1,000 stop strings": {"text": "Hi", "sampling": {"stop": ["x"] * 1000}},
    "1,000 log probabilities": {"text": "Hi", "sampling": {"logprobs": 1000}},
    "a tenant": {"text": "Hi", "tenant": "globex"},
    "an extra key": {"text": "Hi", "extra_key": b"x" * 16},
    "a long scope": {"text": "Hi", "scope": "s" * 1000},
    "a schema that is no JSON": {"text": "Hi", "sampling": {"json_schema": "{"}},
    "a schema of no type": {"text": "Hi", "sampling": {"json_schema": '{"type": 12}'}},
    "a schema that nothing meets": {"text": "Hi", "sampling": {"json_schema": "false"}},
    "a regular expression that is none": {"text": "Hi", "sampling": {"regex": "("}},
    "a regular expression too large": {"text": "Hi", "sampling": {"regex": "((a{999}){999}){999}"}},
}
SLOW: dict[str, Any] = {"text": "Hi", "sampling": {"max_new_tokens": 4000, "ignore_eos": True}}


async def test_whatever_clients_get_wrong_no_breaker_opens(worker: Fleet) -> None:
    strict = WorkerLinkConfig(breaker_failures=1)
    address = worker.workers[0].address
    async with gateway(worker.redis.url, [address], tenants=["careless"], worker_link=strict) as stack:
        await stack.ready(30)
        for what, request in MALFORMED.items():
            refused = await stack.refused("careless", **request)
            assert refused.code in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}, what
        for _ in range(5):
            call = stack.call("careless", **SLOW)
            await anext(aiter(call))
            call.cancel()
            assert (await stack.refused("careless", timeout=0.2, **SLOW)).code is grpc.StatusCode.DEADLINE_EXCEEDED
        crowd = await asyncio.gather(*(code_of(stack.call("careless", timeout=2.0, **SLOW)) for _ in range(16)))
        assert set(crowd) == {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert (await stack.generate("careless", text="Hi", sampling={"max_new_tokens": 2})).token_ids
        assert stack.observer.breakers == []
    refused_by_worker = worker.workers[0].total("radixgate_sequences_finished_total", outcome="invalid_argument")
    assert refused_by_worker > 0


async def code_of(call: grpc.aio.UnaryStreamCall[Any, Any]) -> grpc.StatusCode:
    with suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass
    return await call.code()


async def test_nothing_grows_without_a_bound_with_tenants_namespaces_and_requests(worker: Fleet) -> None:
    metrics = GatewayMetrics()
    config = config_for(worker.redis.url, [worker.workers[0].address], routing=RoutingConfig(max_index_pages=MAX_PAGES))
    async with GatewayApp(config, metrics) as app, channel_to(app.address) as channel:
        stack = Stack(app, RecordingObserver(), channel)
        await stack.ready(30)
        await serve_tenants(stack, range(NUM_TENANTS))
        before = kept(app) | kept(metrics)
        await serve_tenants(stack, range(NUM_TENANTS, 2 * NUM_TENANTS))
        after = kept(app) | kept(metrics)
    found = grown(before, after, by=NUM_TENANTS // 4)
    assert found.keys() <= BOUNDS.keys()
    assert all(length <= BOUNDS[name] for name, length in found.items())
    assert "_read" in found  # it has looked where tenants are kept
    assert len(app.serving.pages.index) <= MAX_PAGES


async def serve_tenants(stack: Stack, numbers: range) -> None:
    """Make tenants, and serve some requests of each, in namespaces of their own."""
    places = asyncio.Semaphore(4)  # what the worker takes at a time

    async def serve(number: int) -> None:
        async with places:
            client = FleetClient(stack.channel, await stack.add_tenant(f"tenant-{number}"))
            for turn in range(3):
                asked = tokens_request([1000 + number, *range(2, 130 + turn)], 1)
                asked.scope = str(turn)
                assert (await client.ask(asked)).error == ""

    await asyncio.gather(*map(serve, numbers))
