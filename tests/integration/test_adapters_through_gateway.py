"""A gateway and a worker, real but for the model: adapters from the operator's call to the tenants' answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from radixgate.v1 import inference_pb2, worker_pb2, worker_pb2_grpc
from tests.fakes.gateway_stack import Stack, bearer, gateway, until
from tests.fakes.model import VOCAB_SIZE, FakeModel, write_fake_adapter
from tests.fakes.worker_stack import config, idle, running_worker
from worker.app import WorkerApp
from worker.engine.fake import continuation

PROMPT = list(range(40))


class Deployment:
    def __init__(
        self, stack: Stack, app: WorkerApp, stub: "worker_pb2_grpc.WorkerServiceAsyncStub", folder: Path
    ) -> None:
        self.stack = stack
        self.app = app
        self.stub = stub
        self._folder = folder

    async def load(self, name: str, revision: str, *tenants: str) -> None:
        """Load an adapter, which its gateways hear of a moment later."""
        path = write_fake_adapter(self._folder / revision, revision)
        await self.stub.LoadAdapter(worker_pb2.LoadAdapterRequest(name=name, path=path, tenants=tenants), timeout=20)

    async def names(self, tenant_id: str) -> list[str]:
        listed = await self.stack.inference.ListModels(
            inference_pb2.ListModelsRequest(), metadata=bearer(self.stack.keys[tenant_id]), timeout=10
        )
        return list(listed.models[0].adapters)

    async def until_named(self, tenant_id: str, *names: str) -> None:
        async with asyncio.timeout(10):
            while await self.names(tenant_id) != list(names):  # noqa: ASYNC110 - the gateway tells nobody
                await asyncio.sleep(0.005)

    async def generate(self, tenant_id: str, adapter: str = "", num_tokens: int = 6) -> tuple[list[int], int]:
        """Return the tokens, and how many of the prompt's were cached."""
        done = await self.stack.generate(
            tenant_id, adapter=adapter, tokens={"token_ids": PROMPT},
            sampling={"max_new_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "seed": 0},
        )  # fmt: skip
        return done.token_ids, done.usage.cached.device


def truth(revision: str, num_tokens: int = 6) -> list[int]:
    return continuation(PROMPT, num_tokens, VOCAB_SIZE, revision)


@asynccontextmanager
async def deployment(redis_url: str, folder: Path) -> AsyncIterator[Deployment]:
    async with running_worker(config(num_slots=4096), FakeModel()) as (app, addresses):
        async with gateway(redis_url, [addresses.grpc], tenants=["acme", "globex"]) as stack:
            await stack.ready()
            async with grpc.aio.insecure_channel(addresses.grpc) as channel:
                yield Deployment(stack, app, worker_pb2_grpc.WorkerServiceStub(channel), folder)


@pytest.fixture
async def running(redis_url: str, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployment(redis_url, tmp_path) as made:
        yield made


async def test_an_adapter_for_all_answers_each_tenant_out_of_its_own_cache(running: Deployment) -> None:
    await running.load("poet", "r1")
    await running.until_named("acme", "poet")
    for tenant_id in ("acme", "globex"):
        assert await running.generate(tenant_id, "poet") == (truth("r1"), 0)
        assert await running.generate(tenant_id, "poet") == (truth("r1"), 39)
        assert await running.generate(tenant_id) == (truth(""), 0)


async def test_new_weights_under_a_name_answer_and_find_nothing(running: Deployment) -> None:
    await running.load("poet", "r1")
    await running.until_named("acme", "poet")
    await running.generate("acme", "poet")
    await running.load("poet", "r2")
    # Whether or not the gateway has heard of it: it asks again where the worker refuses.
    assert await running.generate("acme", "poet") == (truth("r2"), 0)


async def test_adapters_that_are_replaced_under_traffic_disturb_no_request(running: Deployment) -> None:
    await running.load("poet", "r0")
    await running.until_named("acme", "poet")
    answers: list[list[int]] = []

    async def keep_asking() -> None:
        while len(answers) < 60:
            answers.append((await running.generate("acme", "poet", num_tokens=30))[0])

    asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
    for number in range(1, 6):
        await until(lambda wanted=number * 8: len(answers) >= wanted)  # type: ignore[misc]
        await running.load("poet", f"r{number}")
    await asyncio.gather(*asking)
    await idle(running.app)

    right = [truth(f"r{number}", 30) for number in range(6)]
    assert all(answer in right for answer in answers)
    assert answers[-1] == right[-1]


async def test_a_tenants_adapter_is_there_for_nobody_else(running: Deployment) -> None:
    await running.load("secret", "s1", "globex")
    await running.until_named("globex", "secret")
    assert await running.names("acme") == []
    assert await running.generate("globex", "secret") == (truth("s1"), 0)
    refused = await running.stack.refused("acme", adapter="secret", tokens={"token_ids": PROMPT})
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND")


async def test_an_unloaded_adapter_is_not_found_and_loaded_again_it_begins_from_nothing(running: Deployment) -> None:
    await running.load("poet", "r1")
    await running.until_named("acme", "poet")
    await running.generate("acme", "poet")
    gone = await running.stub.UnloadAdapter(worker_pb2.UnloadAdapterRequest(name="poet"), timeout=20)
    assert gone.dropped_tokens > 0
    refused = await running.stack.refused("acme", adapter="poet", tokens={"token_ids": PROMPT})
    assert refused.code is grpc.StatusCode.NOT_FOUND
    await running.load("poet", "r1")
    await running.until_named("acme", "poet")
    assert await running.generate("acme", "poet") == (truth("r1"), 0)
