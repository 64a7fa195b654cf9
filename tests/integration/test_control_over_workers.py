"""What operators want, through a real gateway and real workers with a tiny model: adapters, public prefixes, purges."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from gateway.config import RoutingConfig
from radixgate.v1 import admin_pb2, worker_pb2, worker_pb2_grpc
from radixgate.v1.inference_pb2 import TokenPrompt
from tests.fakes.gateway_stack import ADMIN_TOKEN, Completion, Refusal, Stack, bearer, gateway
from tests.fakes.tiny_llama import tiny_llama
from tests.fakes.tiny_tokenizer import CONTROL_TOKENS, tiny_tokenizer
from tests.fakes.worker_stack import PATIENCE_S, idle, running_worker
from tests.tools import REPOSITORY
from worker.app import WorkerApp
from worker.config import CacheConfig, EngineConfig, ModelConfig, StorageConfig, WorkerConfig
from worker.model.loading import LoadedModel, load_model
from worker.model.progress import SilentProgress

ADMIN = bearer(ADMIN_TOKEN)
ADAPTERS = REPOSITORY / "examples" / "adapters"
DICE = random.Random(11)


def random_tokens(num_tokens: int) -> list[int]:
    return [DICE.randrange(len(CONTROL_TOKENS), tiny_tokenizer().get_vocab_size()) for _ in range(num_tokens)]


PREFIX = random_tokens(1000)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model. Workers load it each for itself, as in processes of their own."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_llama(folder)
    return folder


def loaded(folder: Path) -> LoadedModel:
    return load_model(ModelConfig(model=str(folder), threads=1, device="cpu", dtype="fp32"), SilentProgress())


class Deployment:
    def __init__(self, stack: Stack, workers: Sequence[WorkerApp], addresses: Sequence[str]) -> None:
        self.stack = stack
        self.workers = workers
        self.addresses = addresses

    async def generate(self, tenant_id: str, token_ids: list[int], num_tokens: int = 8, **more: Any) -> Completion:
        sampling = {"max_new_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
        return await self.stack.generate(tenant_id, tokens={"token_ids": token_ids}, sampling=sampling, **more)

    async def idle(self) -> None:
        for worker in self.workers:
            await idle(worker)


@asynccontextmanager
async def deployment(
    redis_url: str, model: Path, caches: Sequence[CacheConfig], tenants: Sequence[str], **engine: Any
) -> AsyncIterator[Deployment]:
    async with AsyncExitStack() as entered:
        workers, addresses = [], []
        for cache in caches:
            config = WorkerConfig(
                listen="127.0.0.1:0", metrics_listen="127.0.0.1:0", cache=cache,
                engine=EngineConfig(check=True, **engine),
            )  # fmt: skip
            app, where = await entered.enter_async_context(running_worker(config, loaded(model)))
            workers.append(app)
            addresses.append(where.grpc)
        # Workers take turns, so that what is asked as often as there are workers is cached at each.
        turns = RoutingConfig(policy="round_robin")
        stack = await entered.enter_async_context(gateway(redis_url, addresses, tenants=tenants, routing=turns))
        await stack.ready()
        async with asyncio.timeout(PATIENCE_S):
            while stack.observer.workers.total() < len(addresses):  # noqa: ASYNC110 - conditions of all kinds
                await asyncio.sleep(0.005)
        yield Deployment(stack, workers, addresses)


# ------------------------------------------------------------------------------------------------------ public prefixes


async def test_64_tenants_compute_a_public_prefix_of_1000_tokens_once(redis_url: str, model: Path) -> None:
    tenants = [f"t{number}" for number in range(64)]
    own = {tenant_id: random_tokens(3) for tenant_id in tenants}
    async with deployment(redis_url, model, [CacheConfig(num_slots=4096)], tenants, max_running=32) as running:
        admin = running.stack.admin
        created = await admin.CreatePublicPrefix(
            admin_pb2.CreatePublicPrefixRequest(prefix_id="rules", tokens=TokenPrompt(token_ids=PREFIX)), metadata=ADMIN
        )
        assert created.prefix.num_tokens == 1000
        done = await asyncio.gather(*(running.generate(each, [*PREFIX, *own[each]], 2) for each in tenants))
        usages = [each.usage for each in done]
        assert {usage.public_prefix_tokens for usage in usages} == {1000}
        assert sorted(usage.cached_public_tokens for usage in usages) == [0] + [1000] * 63
        assert sorted(usage.cached.device for usage in usages) == [0] + [1000] * 63
        # Nobody's own is shared, and everybody's is found again.
        again = await running.generate("t0", [*PREFIX, *own["t0"]], 2)
        assert again.usage.cached.device == 1002
        assert (await running.generate("t1", [*PREFIX, *own["t0"]], 2)).usage.cached.device == 1000
        assert again.token_ids == done[0].token_ids

        stats = await admin.GetCacheStats(admin_pb2.GetCacheStatsRequest(), metadata=ADMIN)
        held = {each.tenant_id: each for each in stats.workers[0].tenants}
        assert (held[""].device_tokens, held[""].namespaces) == (1000, 1)
        assert set(held) == {"", *tenants}

        deleted = await admin.DeletePublicPrefix(admin_pb2.DeletePublicPrefixRequest(prefix_id="rules"), metadata=ADMIN)
        assert deleted.purged.device_tokens >= 1000
        usage = (await running.generate("t2", [*PREFIX, *own["t2"]], 2)).usage
        assert (usage.public_prefix_tokens, usage.cached.device) == (0, 0)
        await running.idle()


async def test_answers_are_the_same_with_and_without_a_public_prefix(redis_url: str, model: Path) -> None:
    prompts = [[*PREFIX[:60], *random_tokens(5)] for _ in range(4)]
    async with deployment(redis_url, model, [CacheConfig(num_slots=2048)], ["acme", "globex"]) as running:
        before = [(await running.generate("acme", prompt)).token_ids for prompt in prompts]
        await running.stack.admin.CreatePublicPrefix(
            admin_pb2.CreatePublicPrefixRequest(prefix_id="p", tokens=TokenPrompt(token_ids=PREFIX[:60])),
            metadata=ADMIN,
        )
        for tenant_id in ("acme", "globex"):
            assert [(await running.generate(tenant_id, prompt)).token_ids for prompt in prompts] == before


# --------------------------------------------------------------------------------------------------------------- purges


async def saved(worker: WorkerApp, num_pages: int) -> None:
    """Wait until the store has so many pages, and nothing more is on its way there."""
    store = worker._tiers.store
    assert store is not None
    async with asyncio.timeout(PATIENCE_S):
        while store.stats().num_pages != num_pages or worker._cache.pending:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.02)


async def test_a_purge_frees_device_host_and_storage_of_that_tenant_on_every_worker(
    redis_url: str, model: Path, tmp_path: Path
) -> None:
    cache = CacheConfig(
        num_slots=1024, host_slots=4096, write_policy="write_through", load_back_threshold=1,
        storage=StorageConfig(url=f"file://{tmp_path}", page_size=16),
    )  # fmt: skip
    prompt = PREFIX[:64]
    async with deployment(redis_url, model, [cache, cache], ["acme", "globex"]) as running:
        for tenant_id in ("acme", "globex"):
            for _ in running.workers:
                await running.generate(tenant_id, prompt)
        await running.idle()
        for worker in running.workers:
            await saved(worker, 2 * 4)

        request = admin_pb2.InvalidateCacheRequest(tenant_id="acme", purge=True)
        purged = (await running.stack.admin.InvalidateCache(request, metadata=ADMIN, timeout=20)).purged
        assert (purged.namespaces, list(purged.unreachable_workers)) == (1, [])
        assert purged.device_tokens == purged.host_tokens == 2 * (64 + 7)
        for worker in running.workers:
            await saved(worker, 4)
        stats = await running.stack.admin.GetCacheStats(admin_pb2.GetCacheStatsRequest(), metadata=ADMIN)
        assert [[each.tenant_id for each in worker.tenants] for worker in stats.workers] == [["globex"]] * 2
        for _ in running.workers:
            assert (await running.generate("globex", prompt)).usage.cached.device == 63
        cold = (await running.generate("acme", prompt)).usage.cached
        assert (cold.device, cold.host, cold.storage) == (0, 0, 0)
        await running.idle()


async def test_requests_in_flight_are_answered_as_if_there_were_no_purge(redis_url: str, model: Path) -> None:
    prompt = PREFIX[:100]
    async with deployment(redis_url, model, [CacheConfig(num_slots=2048)], ["acme"]) as running:
        alone = (await running.generate("acme", prompt, 700)).token_ids
        call = asyncio.create_task(running.generate("acme", prompt, 700))
        purged: list[int] = []
        while not call.done():
            request = admin_pb2.InvalidateCacheRequest(tenant_id="acme", purge=True)
            answer = await running.stack.admin.InvalidateCache(request, metadata=ADMIN, timeout=20)
            purged.append(answer.purged.namespaces)
        assert purged[0] >= 1
        assert (await call).token_ids == alone
        await running.idle()


# ------------------------------------------------------------------------------------------------------------- adapters


@pytest.fixture(scope="module")
def weights(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Folders with three adapters of random weights, each of which changes every answer."""
    made = []
    for seed in range(3):
        base = AutoModelForCausalLM.from_pretrained(str(model))
        adapted = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8))
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
        made.append(str(tmp_path_factory.mktemp("adapters") / f"seed-{seed}"))
        adapted.save_pretrained(made[-1])
    return made


async def register(running: Deployment, path: str, percent: int | None = None) -> admin_pb2.RegisteredAdapter:
    request = admin_pb2.RegisterAdapterRequest(name="poet", path=path, traffic_percent=percent)
    return (await running.stack.admin.RegisterAdapter(request, metadata=ADMIN, timeout=30)).adapter


async def test_weights_go_from_a_canary_to_all_traffic_and_back(
    redis_url: str, model: Path, weights: list[str]
) -> None:
    prompt, cache = PREFIX[:40], CacheConfig(num_slots=2048)
    async with deployment(redis_url, model, [cache, cache], ["acme"]) as running:

        async def answers(num: int = 12) -> list[tuple[int, ...]]:
            scopes = [running.generate("acme", prompt, adapter="poet", scope=f"s{i}") for i in range(num)]
            return [tuple(each.token_ids) for each in await asyncio.gather(*scopes)]

        old = (await register(running, weights[0])).revisions[0].revision
        (of_old,) = set(await answers())
        canary = await register(running, weights[1], 50)
        new = canary.revisions[1].revision
        assert [each.traffic_percent for each in canary.revisions] == [50, 50]
        assert {(each.revision, each.loaded) for each in canary.placements} == {(old, True), (new, True)}
        mixed = await answers()
        assert len(set(mixed)) == 2
        assert of_old in mixed
        assert await answers() == mixed
        (of_new,) = set(mixed) - {of_old}

        request = admin_pb2.SplitAdapterTrafficRequest(name="poet", revision=new, traffic_percent=100)
        await running.stack.admin.SplitAdapterTraffic(request, metadata=ADMIN)
        assert set(await answers()) == {of_new}
        async with asyncio.timeout(PATIENCE_S):
            while {each.revision for each in await on_workers(running)} != {new}:  # noqa: ASYNC110 - nor does it
                await asyncio.sleep(0.02)

        back = admin_pb2.RollBackAdapterRequest(name="poet")
        await running.stack.admin.RollBackAdapter(back, metadata=ADMIN, timeout=30)
        assert set(await answers()) == {of_old}
        gone = admin_pb2.UnregisterAdapterRequest(name="poet")
        await running.stack.admin.UnregisterAdapter(gone, metadata=ADMIN, timeout=30)
        refused = await running.stack.refused("acme", adapter="poet", tokens={"token_ids": prompt})
        assert refused.reason == "ADAPTER_NOT_FOUND"
        assert await on_workers(running) == []
        await running.idle()


@pytest.mark.model
async def test_trained_adapters_are_registered_as_a_canary_and_rolled_back(
    redis_url: str, fp32_model: LoadedModel
) -> None:
    config = WorkerConfig(
        listen="127.0.0.1:0", metrics_listen="127.0.0.1:0", cache=CacheConfig(num_slots=2048),
        engine=EngineConfig(check=True),
    )  # fmt: skip
    chat = {"messages": [{"role": "user", "content": "What is a bicycle?"}]}
    async with running_worker(config, fp32_model) as (app, where), gateway(redis_url, [where.grpc]) as stack:
        await stack.ready()
        running = Deployment(stack, [app], [where.grpc])

        async def answers() -> set[str]:
            sampling = {"max_new_tokens": 12, "temperature": 0}
            scopes = [stack.generate(adapter="poet", scope=f"s{i}", chat=chat, sampling=sampling) for i in range(6)]
            return {each.text for each in await asyncio.gather(*scopes)}

        await register(running, str(ADAPTERS / "pirate"))
        of_pirate = await answers()
        assert len(of_pirate) == 1
        canary = await register(running, str(ADAPTERS / "tagger"), 50)
        assert len({each.revision for each in canary.revisions}) == 2
        both = await answers()
        assert (len(both), of_pirate < both) == (2, True)
        await stack.admin.RollBackAdapter(admin_pb2.RollBackAdapterRequest(name="poet"), metadata=ADMIN, timeout=30)
        assert await answers() == of_pirate
        await idle(app)


async def test_weights_that_are_no_adapter_are_refused_as_the_worker_does(
    redis_url: str, model: Path, tmp_path: Path
) -> None:
    async with deployment(redis_url, model, [CacheConfig(num_slots=256)], ["acme"]) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await register(running, str(tmp_path))
        refused = Refusal.of(caught.value)
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        assert "adapter_config.json" in refused.fields["path"]


async def on_workers(running: Deployment) -> list[worker_pb2.Adapter]:
    found: list[worker_pb2.Adapter] = []
    for address in running.addresses:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            found.extend((await stub.ListAdapters(worker_pb2.ListAdaptersRequest(), timeout=10)).adapters)
    return found
