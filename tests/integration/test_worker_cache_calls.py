"""What operators ask of a worker's cache, over its real socket, while gateways use it; only the model is a fake."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from radixgate.v1 import inference_pb2, worker_pb2
from tests.fakes.model import VOCAB_SIZE, FakeModel, Pace, PacedModel, write_fake_adapter
from tests.fakes.worker_stack import PATIENCE_S, Gateway, idle, running_worker
from worker.app import WorkerApp
from worker.config import CacheConfig, EngineConfig, StorageConfig, WorkerConfig
from worker.engine.fake import continuation
from worker.rpc.cache_calls import MAX_NAMESPACES

PUBLIC = b"public".ljust(16)
SYSTEM_PROMPT = [(7 * index) % 200 for index in range(1_000)]


def own(tenant: str, version: int = 0) -> bytes:
    return f"{tenant}.{version}".encode().ljust(16)


class Operator(Gateway):
    """A gateway's link, and the calls about the cache."""

    async def ask(
        self, sequence_id: int, tenant: str, tokens: list[int], *, public: list[int] | None = None, **changes: Any
    ) -> None:
        segments = [worker_pb2.PromptSegment(extra_key=own(tenant, changes.pop("version", 0)), token_ids=tokens)]
        if public is not None:
            segments.insert(0, worker_pb2.PromptSegment(extra_key=PUBLIC, token_ids=public))
        sampling = {"max_new_tokens": changes.pop("max_new_tokens", 4), "ignore_eos": True}
        submit = worker_pb2.Submit(
            sequence_id=sequence_id,
            prompt=segments,
            tenant=tenant,
            sampling=inference_pb2.SamplingParams(**sampling),
            **changes,
        )
        await self._call.write(worker_pb2.ConnectRequest(submit=submit))

    async def generate(self, sequence_id: int, tenant: str, tokens: list[int], **changes: Any) -> int:
        """Have a request answered; return how many of its tokens were cached on the device."""
        await self.ask(sequence_id, tenant, tokens, **changes)
        end = await self.end(sequence_id)
        assert end.WhichOneof("end") == "finish_reason", end
        return self.admission(sequence_id).cached.device

    async def drop(self, *extra_keys: bytes, **changes: Any) -> worker_pb2.DropCacheResponse:
        namespaces = [worker_pb2.CacheNamespace(extra_key=extra_key, **changes) for extra_key in extra_keys]
        return await self.stub.DropCache(worker_pb2.DropCacheRequest(namespaces=namespaces), timeout=20)

    async def contents(self) -> worker_pb2.DescribeCacheResponse:
        return await self.stub.DescribeCache(worker_pb2.DescribeCacheRequest(), timeout=20)


@asynccontextmanager
async def worker(
    model: FakeModel | None = None, cache: CacheConfig | None = None, **engine: int
) -> AsyncIterator[tuple[WorkerApp, Operator]]:
    worker_config = WorkerConfig(
        listen="127.0.0.1:0",
        metrics_listen="127.0.0.1:0",
        cache=cache or CacheConfig(num_slots=2_048),
        engine=EngineConfig(check=True, **engine),  # type: ignore[arg-type]
    )
    async with running_worker(worker_config, model or FakeModel()) as (app, addresses):
        operator = Operator(addresses.grpc)
        try:
            yield app, operator
        finally:
            await operator.close()


def shares(contents: worker_pb2.DescribeCacheResponse) -> dict[str, tuple[int, int]]:
    return {each.tenant: (each.device_tokens, each.namespaces) for each in contents.tenants}


async def test_64_tenants_at_once_compute_a_public_prefix_once_and_unregistered_it_is_gone() -> None:
    async with worker(cache=CacheConfig(num_slots=4_096), max_running=32) as (app, operator):
        for number in range(64):
            await operator.ask(number, f"t{number}", [number, 1, 2], public=SYSTEM_PROMPT)
        for number in range(64):
            await operator.end(number)
            assert operator.tokens(number) == continuation([*SYSTEM_PROMPT, number, 1, 2], 4, VOCAB_SIZE)
        hits = [operator.admission(number).cached.device for number in range(64)]
        assert sorted(hits) == [0] + [1_000] * 63
        contents = shares(await operator.contents())
        assert contents == {"": (1_000, 1), **{f"t{number}": (6, 1) for number in range(64)}}

        freed = await operator.drop(PUBLIC)
        assert freed.device_tokens == 1_000
        assert await operator.generate(100, "t0", [0, 1, 2], public=SYSTEM_PROMPT) == 0
        await idle(app)
        assert shares(await operator.contents()) == {"": (1_000, 1), "t0": (6, 1)}


async def test_a_purge_frees_that_namespace_and_no_other() -> None:
    async with worker() as (app, operator):
        for number, tenant in enumerate(["acme", "globex"]):
            assert await operator.generate(number, tenant, [*range(100)]) == 0
        assert await operator.generate(2, "acme", [*range(50)], version=1) == 0
        assert shares(await operator.contents()) == {"acme": (103 + 53, 2), "globex": (103, 1)}
        freed = await operator.drop(own("acme"), own("nobody"), own("acme"))
        assert (freed.device_tokens, freed.host_tokens) == (103, 0)
        contents = await operator.contents()
        assert shares(contents) == {"acme": (53, 1), "globex": (103, 1)}
        assert (contents.device_slots, contents.host_slots, contents.host_free_slots) == (2_048, 0, 0)
        assert [await operator.generate(number, "acme", [*range(100)]) for number in (3, 4)] == [0, 99]
        assert await operator.generate(5, "globex", [*range(100)]) == 99
        await idle(app)


async def test_who_is_in_flight_goes_on_undisturbed_and_leaves_nothing() -> None:
    with Pace() as pace:
        async with worker(PacedModel(pace=pace)) as (app, operator):
            await operator.ask(1, "acme", [*range(40)], max_new_tokens=30)
            pace.allow_one()
            await operator.until(lambda: len(operator.tokens(1)) == 1)
            dropping = asyncio.create_task(operator.drop(own("acme")))
            assert app._thread is not None
            async with asyncio.timeout(PATIENCE_S):
                while True:  # until it waits for the end of the step
                    if not app._thread._commands.empty():
                        break
                    await asyncio.sleep(0.01)
            for _ in range(60):
                pace.allow_one()
            freed = await dropping
            await operator.end(1)
            await idle(app)
            contents = await operator.contents()
    assert operator.tokens(1) == continuation([*range(40)], 30, VOCAB_SIZE)
    assert freed.device_tokens == 0
    assert shares(contents) == {}


async def saved(app: WorkerApp, num_pages: int) -> None:
    """Wait until the store has so many pages, and nothing more is on its way there."""
    assert app._tiers.store is not None
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if app._tiers.store.stats().num_pages == num_pages and app._cache.pending == 0:
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("scheme", ["file", "redis"])
async def test_a_purge_reaches_host_and_storage(scheme: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"file://{tmp_path}" if scheme == "file" else request.getfixturevalue("redis_url")
    cache = CacheConfig(
        num_slots=1_024,
        host_slots=4_096,
        write_policy="write_through",
        load_back_threshold=1,
        storage=StorageConfig(url=url, page_size=16),
    )
    public = SYSTEM_PROMPT[:160]
    async with worker(cache=cache) as (app, operator):
        for number, tenant in enumerate(["acme", "globex"]):
            await operator.generate(number, tenant, [*range(100)], public=public)
        await saved(app, 10 + 6 + 6)
        freed = await operator.drop(own("acme"))
        assert (freed.device_tokens, freed.host_tokens) == (103, 103)
        await saved(app, 10 + 6)
        contents = await operator.contents()
        tenants = {each.tenant: (each.device_tokens, each.host_tokens) for each in contents.tenants}
        assert tenants == {"": (160, 160), "globex": (103, 103)}
        await idle(app)


async def test_a_public_prefix_is_one_for_each_adapter_and_goes_with_it(tmp_path: Path) -> None:
    async with worker() as (app, operator):
        request = worker_pb2.LoadAdapterRequest(name="poet", path=write_fake_adapter(tmp_path, "r1"))
        await operator.stub.LoadAdapter(request, timeout=20)
        adapted = {"adapter": "poet", "adapter_revision": "r1"}
        hits = []
        for number, (tenant, adapter) in enumerate([("acme", {}), ("acme", adapted), ("globex", adapted)]):
            hits.append(await operator.generate(number, tenant, [1, 2, 3], public=SYSTEM_PROMPT[:300], **adapter))
        assert hits == [0, 0, 300]
        assert operator.tokens(2) == continuation([*SYSTEM_PROMPT[:300], 1, 2, 3], 4, VOCAB_SIZE, "r1")
        freed = await operator.drop(PUBLIC, adapter_revision="r1")
        assert freed.device_tokens == 300
        assert await operator.generate(3, "globex", [1, 2, 3], public=SYSTEM_PROMPT[:300], **adapted) == 0
        assert await operator.generate(4, "globex", [1, 2, 3], public=SYSTEM_PROMPT[:300]) == 300
        await operator.stub.UnloadAdapter(worker_pb2.UnloadAdapterRequest(name="poet"), timeout=20)
        assert shares(await operator.contents()) == {"": (300, 1), "acme": (6, 1), "globex": (6, 1)}
        await idle(app)


async def test_a_floor_that_submits_say_keeps_a_tenants_prefix_through_a_flood() -> None:
    async with worker(cache=CacheConfig(num_slots=512)) as (_, operator):
        assert await operator.generate(0, "acme", [*range(100)], cache_floor_tokens=150) == 0
        assert await operator.generate(1, "globex", [*range(100)]) == 0
        for number in range(2, 20):
            await operator.generate(number, "flood", [number, *range(250)])
        assert await operator.generate(20, "globex", [*range(100)]) == 0
        assert await operator.generate(21, "acme", [*range(100)], cache_floor_tokens=150) == 99


async def test_what_cannot_be_asked_is_refused_by_field() -> None:
    async with worker() as (_, operator):
        for keys, field in (
            ([b"short"], "namespaces[0].extra_key"),
            ([bytes(16), bytes(17)], "namespaces[1].extra_key"),
            ([bytes(16)] * (MAX_NAMESPACES + 1), "namespaces"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await operator.drop(*keys)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            status: Any = rpc_status.from_call(caught.value)  # type: ignore[arg-type]
            bad_request = error_details_pb2.BadRequest()
            assert status.details[0].Unpack(bad_request)
            assert [violation.field for violation in bad_request.field_violations] == [field]
        assert (await operator.drop()).device_tokens == 0


async def test_ten_thousand_namespaces_go_in_one_call_while_others_are_served() -> None:
    async with worker() as (_, operator):
        for number in range(100):
            await operator.generate(number, f"t{number}", [number, 1, 2, 3])
        keys = [own(f"t{number}") for number in range(MAX_NAMESPACES)]
        dropping = asyncio.create_task(operator.drop(*keys))
        assert await operator.generate(1_000, "other", [1, 2, 3]) == 0
        assert (await dropping).device_tokens == 100 * 7
        assert shares(await operator.contents()).keys() == {"other"}


async def test_a_worker_that_has_stopped_says_so() -> None:
    async with worker() as (app, operator):
        assert app._thread is not None
        await asyncio.to_thread(app._thread.stop)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await operator.contents()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
