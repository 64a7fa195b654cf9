"""A whole worker over real sockets, as gateways use it; only the model is a fake."""

import asyncio
import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hicache.keys import ExtraKey
from radixgate.v1 import worker_pb2
from tests.fakes.model import EOS, FakeModel
from tests.fakes.worker_stack import KEY_A, PATIENCE_S, Gateway, config, idle, running_worker
from worker.app import SERVICE_NAME, WorkerApp

KEY_B = bytes([1] * 16)


async def test_a_gateway_learns_all_it_needs_of_the_model() -> None:
    async with running_worker(config(num_slots=300)) as (_, addresses):
        gateway = Gateway(addresses.grpc)
        model = await gateway.stub.GetModel(worker_pb2.GetModelRequest())
        await gateway.close()

    assert (model.model, model.worker_id) == ("fake", "worker-0")
    assert (model.context_length, model.max_sequence_tokens, model.page_size) == (4096, 300, 1)
    assert list(model.eos_token_ids) == [EOS]
    assert b'"BPE"' in model.tokenizer_json


async def test_the_second_request_of_a_namespace_hits_and_another_namespace_does_not() -> None:
    async with running_worker(config()) as (app, addresses):
        gateway = Gateway(addresses.grpc)
        for sequence_id, extra_key in enumerate((KEY_A, KEY_A, KEY_B)):
            await gateway.submit(sequence_id, list(range(20)), extra_key)
            await gateway.end(sequence_id)
        await idle(app)
        await gateway.close()

    assert [gateway.admission(i).cached.device for i in range(3)] == [0, 19, 0]
    assert gateway.tokens(0) == gateway.tokens(1) == gateway.tokens(2)
    assert len(gateway.tokens(0)) == 4


async def test_a_gateway_that_vanishes_leaves_nothing_behind_and_disturbs_nobody() -> None:
    async with running_worker(config()) as (app, addresses):
        vanishing, staying = Gateway(addresses.grpc), Gateway(addresses.grpc)
        await vanishing.submit(1, [1, 2, 3], max_new_tokens=400)
        await staying.submit(1, [4, 5, 6], max_new_tokens=60)
        await vanishing.until(lambda: len(vanishing.tokens(1)) >= 5)
        await vanishing.close()

        end = await staying.end(1)
        await idle(app)
        await staying.close()

    assert end.WhichOneof("end") == "finish_reason"
    assert len(staying.tokens(1)) == 60


async def test_a_cancelled_sequence_ends_as_cancelled_and_frees_its_slots() -> None:
    async with running_worker(config()) as (app, addresses):
        gateway = Gateway(addresses.grpc)
        await gateway.submit(1, [1, 2, 3], max_new_tokens=400)
        await gateway.until(lambda: len(gateway.tokens(1)) >= 5)
        await gateway.cancel(1)
        end = await gateway.end(1)
        await idle(app)
        await gateway.close()

    assert end.error.code == worker_pb2.SEQUENCE_ERROR_CODE_CANCELLED
    assert len(gateway.tokens(1)) < 400


async def test_a_deadline_that_passes_in_the_queue_ends_the_sequence() -> None:
    async with running_worker(config(max_running=1)) as (app, addresses):
        gateway = Gateway(addresses.grpc)
        await gateway.submit(1, [1, 2, 3], max_new_tokens=500)
        await gateway.submit(2, [4, 5, 6], max_new_tokens=4, timeout_ms=1)
        end = await gateway.end(2)
        await gateway.cancel(1)
        await idle(app)
        await gateway.close()

    assert end.error.code == worker_pb2.SEQUENCE_ERROR_CODE_DEADLINE_EXCEEDED


@pytest.mark.parametrize("extra_key", [b"", b"short", bytes(17)])
async def test_a_submit_without_a_whole_extra_key_is_refused_and_the_stream_goes_on(extra_key: bytes) -> None:
    async with running_worker(config()) as (_, addresses):
        gateway = Gateway(addresses.grpc)
        await gateway.submit(1, [1, 2, 3], extra_key)
        refused = await gateway.end(1)
        await gateway.submit(2, [1, 2, 3])
        served = await gateway.end(2)
        await gateway.close()

    assert refused.error.code == worker_pb2.SEQUENCE_ERROR_CODE_INVALID_ARGUMENT
    assert refused.error.field == "prompt[0].extra_key"
    assert served.WhichOneof("end") == "finish_reason"


async def test_an_adapter_that_is_not_loaded_is_not_found() -> None:
    async with running_worker(config()) as (_, addresses):
        gateway = Gateway(addresses.grpc)
        await gateway.submit(1, [1, 2, 3], adapter="poet", adapter_revision="r1")
        end = await gateway.end(1)
        await gateway.close()

    assert (end.error.code, end.error.field) == (worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND, "adapter")


async def test_a_sequence_id_used_twice_ends_the_stream_that_did_it() -> None:
    async with running_worker(config()) as (app, addresses):
        gateway = Gateway(addresses.grpc)
        await gateway.submit(1, [1, 2, 3], max_new_tokens=400)
        await gateway.submit(1, [1, 2, 3], max_new_tokens=400)
        await gateway.ended()
        await idle(app)
        await gateway.close()


async def test_what_is_scraped_equals_what_was_answered() -> None:
    async with running_worker(config()) as (app, addresses):
        gateway = Gateway(addresses.grpc)
        for sequence_id in range(6):
            await gateway.submit(sequence_id, list(range(10 + sequence_id)))
            await gateway.end(sequence_id)
        await idle(app)
        page = await asyncio.to_thread(_scrape, addresses.metrics)
        await gateway.close()

    prompt = sum(gateway.admission(i).prompt_tokens for i in range(6))
    cached = sum(gateway.admission(i).cached.device for i in range(6))
    labels = 'adapter="",tenant="acme"'
    assert cached > 0
    assert _sample(page, "radixgate_prompt_tokens_total", labels) == prompt
    assert _sample(page, "radixgate_cached_tokens_total", 'tier="device"') == cached
    assert _sample(page, "radixgate_computed_prompt_tokens_total", labels) == prompt - cached
    assert _sample(page, "radixgate_cache_hit_rate", labels) == pytest.approx(cached / prompt)


async def test_health_says_serving_until_the_worker_drains() -> None:
    app = WorkerApp(config(), FakeModel())
    addresses = await app.start()
    async with grpc.aio.insecure_channel(addresses.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(  # type: ignore[attr-defined]  # missing in the stubs
            health_pb2.HealthCheckRequest(service=SERVICE_NAME)
        )
        first = await asyncio.wait_for(watch.read(), PATIENCE_S)
        await app.stop(drain_timeout_s=0.0)
        second = await asyncio.wait_for(watch.read(), PATIENCE_S)

    assert first.status == health_pb2.HealthCheckResponse.SERVING
    assert second.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_what_still_runs_when_the_worker_stops_is_told_so() -> None:
    async with running_worker(config()) as (app, addresses):
        gateway = Gateway(addresses.grpc)
        await gateway.submit(1, [1, 2, 3], max_new_tokens=500)
        await gateway.until(lambda: len(gateway.tokens(1)) >= 1)
        await app.stop(drain_timeout_s=0.0)
        end = await gateway.end(1)
        await gateway.close()

    assert end.error.code == worker_pb2.SEQUENCE_ERROR_CODE_SHUTTING_DOWN


def _scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
        page: str = response.read().decode()
        return page


def _sample(page: str, name: str, labels: str) -> float:
    """Return the value of the one sample of `name` whose labels, sorted, contain `labels`."""
    values = []
    for line in page.splitlines():
        if line.startswith(name + "{"):
            found, _, value = line[len(name) + 1 :].partition("} ")
            if labels in ",".join(sorted(found.split(","))):
                values.append(float(value))
    (only,) = values
    return only


VARIANTS = {
    "base": ExtraKey("acme"),
    "tenant": ExtraKey("acme2"),
    "adapter": ExtraKey("acme", adapter="poet"),
    "adapter revision": ExtraKey("acme", adapter="poet", adapter_revision="r1"),
    "newer adapter revision": ExtraKey("acme", adapter="poet", adapter_revision="r2"),
    "cache version": ExtraKey("acme", cache_version=1),
    "scope": ExtraKey("acme", scope="poet"),
    "fields shifted": ExtraKey("acm", adapter="epoet"),
}


async def test_no_two_extra_keys_share_anything() -> None:
    """Each variant finds nothing of the others' and all of its own."""
    async with running_worker(config(num_slots=1024)) as (_, addresses):
        gateway = Gateway(addresses.grpc)
        keys = [variant.digest(b"a secret of the test") for variant in VARIANTS.values()]
        for sequence_id, extra_key in enumerate([*keys, *keys]):
            await gateway.submit(sequence_id, list(range(30)), extra_key)
            await gateway.end(sequence_id)
        await gateway.close()

    cached = [gateway.admission(i).cached.device for i in range(2 * len(keys))]
    assert cached == [0] * len(keys) + [29] * len(keys)
