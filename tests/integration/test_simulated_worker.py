"""A whole worker around a simulated model: what it says does not depend on where its cache found what."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from radixgate.v1 import inference_pb2, worker_pb2
from tests.fakes.worker_stack import Gateway, config, idle, running_worker
from worker.config import CacheConfig, SimulationConfig, StorageConfig, WorkerConfig
from worker.simulate.model import SimulatedModel

FAST = SimulationConfig(enabled=True, speed=1000.0)
PROMPTS = [[1000 + number, *range(5000, 5090)] for number in range(12)]
NUM_NEW = 6


def simulated(cache: CacheConfig) -> WorkerConfig:
    return replace(config(), cache=cache, simulation=FAST)


async def answers(gateway: Gateway, first_number: int, prompts: Sequence[list[int]] = PROMPTS) -> list[list[int]]:
    numbers = range(first_number, first_number + len(prompts))
    for number, tokens in zip(numbers, prompts, strict=True):
        await gateway.submit(number, tokens, max_new_tokens=NUM_NEW, temperature=0.0)
        await gateway.end(number)
    return [gateway.tokens(number) for number in numbers]


def cached(gateway: Gateway, first_number: int) -> inference_pb2.CachedTokens:
    found = inference_pb2.CachedTokens()
    for number in range(first_number, first_number + len(PROMPTS)):
        of_one = gateway.admission(number).cached
        found.device += of_one.device
        found.host += of_one.host
        found.storage += of_one.storage
    return found


async def test_answers_are_the_same_from_device_host_and_storage(tmp_path: Path) -> None:
    roomy = simulated(CacheConfig(num_slots=4096))
    storage = StorageConfig(url=(tmp_path / "pages").as_uri(), page_size=16, prefetch_timeout_s=30.0)
    tight = simulated(
        CacheConfig(num_slots=512, host_slots=2048, low_watermark=0.5, high_watermark=0.7, storage=storage)
    )
    async with running_worker(roomy, SimulatedModel(FAST)) as (app, addresses):
        gateway = Gateway(addresses.grpc)
        computed = await answers(gateway, 0)
        assert await answers(gateway, 100) == computed
        assert cached(gateway, 100).device == len(PROMPTS) * (len(PROMPTS[0]) - 1)
        await gateway.close()
        await idle(app)
    async with running_worker(tight, SimulatedModel(FAST)) as (app, addresses):
        gateway = Gateway(addresses.grpc)
        assert await answers(gateway, 0) == computed
        assert await answers(gateway, 100) == computed
        assert cached(gateway, 100).host > 0
        await gateway.close()
        await idle(app)
        await app.stop(drain_timeout_s=20.0)  # brings to storage what the device has
    async with running_worker(tight, SimulatedModel(FAST)) as (app, addresses):
        gateway = Gateway(addresses.grpc)
        assert await answers(gateway, 200) == computed
        assert cached(gateway, 200).storage > 0
        await gateway.close()


async def test_a_worker_describes_a_simulated_model_as_one() -> None:
    async with running_worker(simulated(CacheConfig(num_slots=4096)), SimulatedModel(FAST)) as (_, addresses):
        gateway = Gateway(addresses.grpc)
        model: worker_pb2.GetModelResponse = await gateway.stub.GetModel(worker_pb2.GetModelRequest())
        await gateway.close()
    assert model.simulated
    assert (model.model, model.context_length) == ("simulated", FAST.context_length)
    assert model.vocab_size > 93_588_261  # the largest id of the conversation trace
    assert len(model.tokenizer_json) < 16_384


@pytest.mark.parametrize(
    ("cache", "num_slots"),
    [
        (CacheConfig(), 1 << 20),
        (CacheConfig(num_slots=300), 300),
        (CacheConfig(memory_bytes=8000), 1000),
        (CacheConfig(page_size=3), (1 << 20) // 3 * 3),
    ],
)
def test_a_simulated_worker_has_a_million_slots_unless_told(cache: CacheConfig, num_slots: int) -> None:
    assert SimulatedModel(FAST).num_slots(cache) == num_slots


def test_a_worker_that_serves_no_model_loads_no_transformers() -> None:
    program = "import sys, worker.app; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
