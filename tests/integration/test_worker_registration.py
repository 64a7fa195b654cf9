"""A whole worker over real sockets makes itself known, says what it is, and takes itself out before it drains."""

import asyncio
import dataclasses
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import redis

from radixgate.v1 import worker_pb2
from tests.e2e.stack import parse_samples
from tests.fakes.gateway_stack import until
from tests.fakes.model import Pace, PacedModel, write_fake_adapter
from tests.fakes.worker_stack import Gateway, config, running_worker
from worker.config import RegistryConfig, WorkerConfig
from worker.errors import WorkerStartError
from worker.registry import keys
from worker.registry.entry import advertised, check_registry


def registering(url: str, worker_id: str = "one", **more: Any) -> WorkerConfig:
    return dataclasses.replace(config(), worker_id=worker_id, registry=RegistryConfig(url=url, **more))


def entry_of(url: str, worker_id: str = "one") -> dict[str, Any] | None:
    """Return what is registered of a worker now."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        text = client.hget(keys.ENTRY + worker_id, "document")
    return json.loads(text) if text else None


async def test_a_worker_says_where_it_is_and_what_it_serves(redis_url: str) -> None:
    async with running_worker(registering(redis_url)) as (_, addresses):
        await until(lambda: entry_of(redis_url) is not None)
        gateway = Gateway(addresses.grpc)
        described = await gateway.stub.GetModel(worker_pb2.GetModelRequest(), timeout=10)
        told = entry_of(redis_url)
        assert told is not None
        assert (told["worker_id"], told["address"]) == ("one", addresses.grpc)
        assert (told["model"], told["model_revision"]) == (described.model, described.model_revision)
        assert told["incarnation"] == described.incarnation != ""
        assert told["context_length"] == described.context_length
        assert "start_time" in told
        await gateway.close()
    assert entry_of(redis_url) is None


async def test_the_entry_is_gone_while_the_worker_drains(redis_url: str) -> None:
    with Pace() as pace:
        async with running_worker(registering(redis_url), PacedModel(pace=pace)) as (app, addresses):
            await until(lambda: entry_of(redis_url) is not None)
            gateway = Gateway(addresses.grpc)
            await gateway.submit(1, [1, 2, 3], max_new_tokens=2)
            await until(lambda: bool(pace.begun))
            stopping = asyncio.create_task(app.stop(drain_timeout_s=60.0))
            await until(lambda: entry_of(redis_url) is None)
            assert not stopping.done()
            for _ in range(4):
                pace.allow_one()
            assert (await gateway.end(1)).WhichOneof("end") == "finish_reason"
            await stopping
            await gateway.close()


async def test_adapters_that_come_and_go_are_told(redis_url: str, tmp_path: Path) -> None:
    write_fake_adapter(tmp_path / "poet", "r1")
    async with running_worker(registering(redis_url)) as (_, addresses):
        await until(lambda: entry_of(redis_url) is not None)
        gateway = Gateway(addresses.grpc)
        request = worker_pb2.LoadAdapterRequest(name="poet", path=str(tmp_path / "poet"))
        await gateway.stub.LoadAdapter(request, timeout=20)
        await until(lambda: (entry_of(redis_url) or {}).get("adapters") == ["poet"])
        await gateway.stub.UnloadAdapter(worker_pb2.UnloadAdapterRequest(name="poet"), timeout=20)
        await until(lambda: "adapters" not in (entry_of(redis_url) or {"adapters": []}))
        await gateway.close()


async def test_a_worker_serves_without_redis_and_says_so_in_its_metrics() -> None:
    async with running_worker(registering("redis://127.0.0.1:1")) as (app, addresses):

        def shown(name: str, **labels: str) -> float | None:
            with urllib.request.urlopen(addresses.metrics, timeout=10) as response:
                samples = parse_samples(response.read().decode(), name)
            return next((value for found, value in samples if labels.items() <= found.items()), None)

        gateway = Gateway(addresses.grpc)
        await gateway.submit(1, [1, 2, 3], max_new_tokens=2)
        assert (await gateway.end(1)).WhichOneof("end") == "finish_reason"
        await until(lambda: app._registrar is not None and app._registrar._outcome == "away")
        assert await asyncio.to_thread(shown, "radixgate_worker_registered") == 0
        assert (await asyncio.to_thread(shown, "radixgate_worker_registrations_total", outcome="away") or 0) >= 1
        await gateway.close()


async def test_a_second_worker_of_one_id_serves_but_is_not_registered(redis_url: str) -> None:
    async with running_worker(registering(redis_url)) as (_, first):
        await until(lambda: entry_of(redis_url) is not None)
        async with running_worker(registering(redis_url)) as (app, _):
            await until(lambda: app._registrar is not None and app._registrar._outcome == "taken")
            told = entry_of(redis_url)
            assert told is not None
            assert told["address"] == first.grpc
        assert entry_of(redis_url) == told


@pytest.mark.parametrize(
    ("listen", "advertise", "told"),
    [
        ("0.0.0.0:50061", None, r"worker\.listen is 0\.0\.0\.0:50061.*set worker\.registry\.advertise"),
        ("[::]:50061", None, r"worker\.listen is \[::\]:50061"),
        ("127.0.0.1:50061", "0.0.0.0:50061", r"worker\.registry\.advertise is 0\.0\.0\.0:50061"),
    ],
)
def test_an_address_that_no_gateway_could_reach_is_refused_by_name(
    listen: str, advertise: str | None, told: str
) -> None:
    registry = RegistryConfig(url="redis://127.0.0.1:1", advertise=advertise)
    with pytest.raises(WorkerStartError, match=told):
        check_registry(WorkerConfig(listen=listen, registry=registry))


def test_without_a_registry_a_worker_may_listen_everywhere() -> None:
    check_registry(WorkerConfig(listen="0.0.0.0:50061"))


@pytest.mark.parametrize(
    ("listen", "advertise", "address"),
    [
        ("10.0.0.1:50061", None, "10.0.0.1:50061"),
        ("10.0.0.1:0", None, "10.0.0.1:41000"),
        ("0.0.0.0:0", "worker-0.workers:0", "worker-0.workers:41000"),
        ("0.0.0.0:0", "worker-0.workers:7", "worker-0.workers:7"),
    ],
)
def test_what_is_advertised_has_the_port_that_is_listened_on_unless_another_is_set(
    listen: str, advertise: str | None, address: str
) -> None:
    registry = RegistryConfig(url="redis://127.0.0.1:1", advertise=advertise)
    assert advertised(WorkerConfig(listen=listen, registry=registry), 41_000) == address
