"""Adapters come to a worker and go over its real socket, while gateways use them; only the model is a fake."""

import asyncio
import dataclasses
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from radixgate.v1 import worker_pb2
from tests.fakes.model import VOCAB_SIZE, FakeModel, Pace, PacedModel, write_fake_adapter
from tests.fakes.worker_stack import Gateway, config, idle, running_worker
from worker.app import WorkerApp
from worker.config import AdapterConfig, LoraConfig
from worker.engine.fake import continuation
from worker.errors import WorkerStartError

PROMPT = list(range(20))


class Operator(Gateway):
    """A gateway's link, and the calls that bring adapters and take them away."""

    async def load(
        self, name: str, path: str, tenants: Sequence[str] = (), *, beside: bool = False
    ) -> worker_pb2.Adapter:
        request = worker_pb2.LoadAdapterRequest(name=name, path=path, tenants=tenants, beside=beside)
        return (await self.stub.LoadAdapter(request, timeout=20)).adapter

    async def unload(self, name: str, tenants: Sequence[str] = (), **how: Any) -> worker_pb2.UnloadAdapterResponse:
        return await self.stub.UnloadAdapter(
            worker_pb2.UnloadAdapterRequest(name=name, tenants=tenants, **how), timeout=20
        )

    async def listed(self) -> list[worker_pb2.Adapter]:
        return list((await self.stub.ListAdapters(worker_pb2.ListAdaptersRequest(), timeout=20)).adapters)

    async def generate(self, sequence_id: int, revision: str, name: str = "poet", **changes: Any) -> list[int]:
        adapter = name if revision else ""
        await self.submit(sequence_id, PROMPT, adapter=adapter, adapter_revision=revision, **changes)
        end = await self.end(sequence_id)
        assert end.WhichOneof("end") == "finish_reason", end
        return self.tokens(sequence_id)

    async def error(self, sequence_id: int, revision: str, name: str = "poet", **changes: Any) -> int:
        await self.submit(sequence_id, PROMPT, adapter=name, adapter_revision=revision, **changes)
        return (await self.end(sequence_id)).error.code

    def cached(self, sequence_id: int) -> int:
        return self.admission(sequence_id).cached.device

    @property
    def told(self) -> list[tuple[str, str]]:
        """Names and revisions as the worker last told them."""
        return [(adapter.name, adapter.revision) for adapter in self.adapters[-1].adapters] if self.adapters else []


def truth(revision: str, num_tokens: int = 4) -> list[int]:
    return continuation(PROMPT, num_tokens, VOCAB_SIZE, revision)


@asynccontextmanager
async def worker(
    model: FakeModel | None = None, lora: LoraConfig | None = None, **engine: int
) -> AsyncIterator[tuple[WorkerApp, Operator, str]]:
    worker_config = dataclasses.replace(config(num_slots=2048, **engine), lora=lora or LoraConfig())
    async with running_worker(worker_config, model or FakeModel()) as (app, addresses):
        operator = Operator(addresses.grpc)
        try:
            yield app, operator, addresses.metrics
        finally:
            await operator.close()


def violation(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    """Return the one field at fault, and what is said of it."""
    status: Any = rpc_status.from_call(error)  # type: ignore[arg-type]
    (detail,) = status.details
    bad_request = error_details_pb2.BadRequest()
    assert detail.Unpack(bad_request)
    (found,) = bad_request.field_violations
    return found.field, found.description


async def test_from_the_moment_a_load_returns_requests_may_name_the_adapter(tmp_path: Path) -> None:
    async with worker() as (app, operator, _):
        loaded = await operator.load("poet", write_fake_adapter(tmp_path, "r1", rank=8))
        assert await operator.generate(1, "r1") == truth("r1")
        assert await operator.generate(2, "") == truth("")
        (listed,) = await operator.listed()
        await idle(app)

    assert (loaded.name, loaded.revision, loaded.rank, list(loaded.targets)) == ("poet", "r1", 8, ["q_proj", "v_proj"])
    assert (listed.resident, listed.users, listed.num_bytes) == (True, 0, 2 * 2 * 8 * 4 * 4)


async def test_base_and_adapters_never_share_kv_over_the_wire(tmp_path: Path) -> None:
    async with worker() as (_, operator, _):
        await operator.load("poet", write_fake_adapter(tmp_path / "1", "r1"))
        await operator.load("painter", write_fake_adapter(tmp_path / "2", "r2"))
        asked = [("poet", "r1"), ("painter", "r2"), ("poet", "")] * 2
        for sequence_id, (name, revision) in enumerate(asked):
            assert await operator.generate(sequence_id, revision, name) == truth(revision)
        assert [operator.cached(sequence_id) for sequence_id in range(6)] == [0, 0, 0, 19, 19, 19]


async def test_every_gateway_is_told_of_adapters_that_come_and_go(tmp_path: Path) -> None:
    async with worker() as (_, operator, _):
        await operator.until(lambda: operator.adapters)
        assert operator.told == []
        await operator.load("poet", write_fake_adapter(tmp_path, "r1"))
        await operator.until(lambda: operator.told == [("poet", "r1")])
        later = Operator(operator.address)
        await later.until(lambda: later.told == [("poet", "r1")])
        await operator.unload("poet")
        await operator.until(lambda: operator.told == [])
        await later.until(lambda: later.told == [])
        await later.close()


async def test_new_weights_under_a_name_find_nothing_of_the_old_ones_and_disturb_nobody(tmp_path: Path) -> None:
    with Pace() as pace:
        async with worker(PacedModel(pace=pace)) as (app, operator, _):
            await operator.load("poet", write_fake_adapter(tmp_path, "r1"))
            await operator.submit(1, PROMPT, adapter="poet", adapter_revision="r1", max_new_tokens=30)
            pace.allow_one()
            await operator.until(lambda: len(operator.tokens(1)) == 1)
            await operator.load("poet", write_fake_adapter(tmp_path, "r2"))
            await operator.submit(2, PROMPT, adapter="poet", adapter_revision="r1")
            await operator.submit(3, PROMPT, adapter="poet", adapter_revision="r2")
            for _ in range(60):
                pace.allow_one()
            for sequence_id in (1, 2, 3):
                await operator.end(sequence_id)
            await operator.until(lambda: operator.told == [("poet", "r2")])
            await idle(app)

    assert operator.tokens(1) == truth("r1", 30)
    assert operator.of(2)[-1].error.code == worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND
    assert operator.tokens(3) == truth("r2")
    assert operator.cached(3) == 0


async def test_two_revisions_side_by_side_serve_whoever_names_them(tmp_path: Path) -> None:
    async with worker() as (app, operator, _):
        await operator.load("poet", write_fake_adapter(tmp_path / "1", "r1"))
        await operator.load("poet", write_fake_adapter(tmp_path / "2", "r2"), beside=True)
        await operator.until(lambda: operator.told == [("poet", "r1"), ("poet", "r2")])
        for sequence_id, revision in enumerate(["r1", "r2"] * 2):
            assert await operator.generate(sequence_id, revision) == truth(revision)
        assert [operator.cached(sequence_id) for sequence_id in range(4)] == [0, 0, 19, 19]
        await operator.unload("poet", revision="r1")
        await operator.until(lambda: operator.told == [("poet", "r2")])
        assert await operator.error(10, "r1") == worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND
        assert await operator.generate(11, "r2") == truth("r2")
        assert operator.cached(11) == 19
        await operator.load("poet", write_fake_adapter(tmp_path / "1", "r1"), beside=True)
        assert await operator.generate(12, "r1") == truth("r1")
        assert operator.cached(12) == 0
        gone = await operator.unload("poet")
        assert gone.dropped_tokens == 2 * 23
        assert await operator.listed() == []
        await idle(app)


async def test_the_same_weights_again_change_nothing(tmp_path: Path) -> None:
    async with worker() as (_, operator, _):
        await operator.load("poet", write_fake_adapter(tmp_path / "1", "r1"))
        await operator.generate(1, "r1")
        await operator.load("poet", write_fake_adapter(tmp_path / "2", "r1"))
        await operator.generate(2, "r1")
        assert operator.cached(2) == 19


async def test_an_adapter_comes_back_while_it_is_on_its_way_out_when_that_has_ended(tmp_path: Path) -> None:
    model = PacedModel()
    with model.pace as pace:
        async with worker(model) as (_, operator, _):
            folder = write_fake_adapter(tmp_path, "r1")
            await operator.load("poet", folder)
            await operator.submit(1, PROMPT, adapter="poet", adapter_revision="r1", max_new_tokens=12)
            pace.allow_one()
            await operator.until(lambda: operator.tokens(1))
            unloading = asyncio.create_task(operator.unload("poet"))
            await operator.until(lambda: operator.told == [])
            loading = asyncio.create_task(operator.load("poet", folder))
            for _ in range(40):
                pace.allow_one()
            await operator.end(1)
            assert (await unloading).failed_sequences == 0
            await loading
            assert await operator.generate(2, "r1") == truth("r1")

    assert operator.tokens(1) == truth("r1", 12)
    assert operator.cached(2) == 0


async def test_two_names_for_the_same_weights_share_them_until_the_last_one_goes(tmp_path: Path) -> None:
    async with worker() as (_, operator, _):
        folder = write_fake_adapter(tmp_path, "r1")
        await operator.load("poet", folder)
        await operator.load("bard", folder)
        await operator.generate(1, "r1")
        assert (await operator.unload("poet")).dropped_tokens == 0
        assert await operator.error(2, "r1") == worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND
        await operator.generate(3, "r1", name="bard")
        assert operator.cached(3) == 19
        assert (await operator.unload("bard")).dropped_tokens > 0


async def test_unloading_under_many_requests_and_cancels_ends_in_bounded_time(tmp_path: Path) -> None:
    async with worker() as (app, operator, _):
        await operator.load("poet", write_fake_adapter(tmp_path, "r1"))
        for sequence_id in range(30):
            await operator.submit(
                sequence_id, [sequence_id, *PROMPT], adapter="poet", adapter_revision="r1", max_new_tokens=1500
            )
        await operator.until(lambda: operator.num_tokens > 20)
        for sequence_id in range(0, 30, 2):
            await operator.cancel(sequence_id)
        async with asyncio.timeout(10):
            gone = await operator.unload("poet", grace_ms=200)
        for sequence_id in range(30):
            await operator.end(sequence_id)
        assert await operator.listed() == []
        await idle(app)

    # Those that were cancelled by then were not failed by it.
    assert 0 < gone.failed_sequences <= 30
    codes = {operator.of(sequence_id)[-1].error.code for sequence_id in range(1, 30, 2)}
    assert codes == {worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND}


async def test_unloading_under_several_completions_of_a_prompt_ends_in_bounded_time(tmp_path: Path) -> None:
    async with worker() as (app, operator, _):
        await operator.load("poet", write_fake_adapter(tmp_path, "r1"))
        for sequence_id in range(6):
            await operator.submit(
                sequence_id, [sequence_id, *PROMPT], adapter="poet", adapter_revision="r1", max_new_tokens=300, n=4
            )
        await operator.until(lambda: all(len(operator.tokens(sequence_id)) > 8 for sequence_id in range(6)))
        await operator.cancel(0)
        await operator.cancel(1)
        async with asyncio.timeout(10):
            gone = await operator.unload("poet", grace_ms=1)
        for sequence_id in range(6):
            await operator.end(sequence_id)
        await idle(app)
        assert await operator.generate(9, "") == truth("")

    assert gone.failed_sequences >= 4
    assert gone.dropped_tokens > 0
    assert {operator.of(sequence_id)[-1].error.code for sequence_id in range(2, 6)} == {
        worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND
    }


async def test_completions_of_one_prompt_end_by_themselves_before_their_adapter_goes(tmp_path: Path) -> None:
    async with worker() as (app, operator, _):
        await operator.load("poet", write_fake_adapter(tmp_path, "r1"))
        await operator.submit(1, PROMPT, adapter="poet", adapter_revision="r1", max_new_tokens=60, n=4)
        await operator.until(lambda: operator.tokens(1))
        gone = await operator.unload("poet")
        await operator.until(lambda: sum(output.WhichOneof("end") is not None for output in operator.of(1)) == 4)
        await idle(app)

    assert gone.failed_sequences == 0
    assert len(operator.tokens(1)) == 4 * 60


async def test_tenants_have_different_adapters_of_one_name_and_cannot_name_each_others(tmp_path: Path) -> None:
    async with worker() as (_, operator, _):
        await operator.load("poet", write_fake_adapter(tmp_path / "1", "r1"), ["acme"])
        await operator.load("poet", write_fake_adapter(tmp_path / "2", "r2"), ["globex", "initech"])
        assert await operator.generate(1, "r1", tenant="acme") == truth("r1")
        assert await operator.generate(2, "r2", tenant="globex") == truth("r2")
        assert await operator.error(3, "r2", tenant="acme") == worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND
        assert await operator.error(4, "r1", tenant="globex") == worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND
        assert operator.of(3)[-1].error.message == "adapter 'poet' is not loaded here"
        await operator.unload("poet", ["acme"])
        assert await operator.generate(5, "r2", tenant="initech") == truth("r2")


@pytest.mark.parametrize(
    ("first", "second"), [([], ["acme"]), (["acme"], []), (["acme", "globex"], ["globex", "initech"])]
)
async def test_no_tenant_can_have_two_adapters_of_one_name(tmp_path: Path, first: list[str], second: list[str]) -> None:
    async with worker() as (_, operator, _):
        folder = write_fake_adapter(tmp_path, "r1")
        await operator.load("poet", folder, first)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await operator.load("poet", folder, second)
        assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"name": "", "path": "x"}, "name"),
        ({"name": "Poet", "path": "x"}, "name"),
        ({"name": "a/b", "path": "x"}, "name"),
        ({"name": "a" * 65, "path": "x"}, "name"),
        ({"name": "poet"}, "path"),
        ({"name": "poet", "path": "/nowhere"}, "path"),
        ({"name": "poet", "path": "x", "tenants": ["a", ""]}, "tenants"),
    ],
)
async def test_a_load_that_cannot_be_names_the_field(request_: dict[str, Any], field: str) -> None:
    async with worker() as (_, operator, _):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await operator.stub.LoadAdapter(worker_pb2.LoadAdapterRequest(**request_), timeout=20)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert violation(refused.value)[0] == field
        assert await operator.listed() == []


async def test_what_is_not_loaded_cannot_be_unloaded(tmp_path: Path) -> None:
    async with worker() as (_, operator, _):
        await operator.load("poet", write_fake_adapter(tmp_path, "r1"), ["acme"])
        for name, tenants, revision in (("bard", ["acme"], ""), ("poet", [], ""), ("poet", ["acme"], "r2")):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await operator.unload(name, tenants, revision=revision)
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        await operator.unload("poet", ["acme"], revision="r1")


@pytest.mark.parametrize("lora", [LoraConfig(max_adapters=1), LoraConfig(max_host_bytes=300)])
async def test_a_worker_takes_no_more_adapters_than_it_may(tmp_path: Path, lora: LoraConfig) -> None:
    async with worker(lora=lora) as (_, operator, _):
        await operator.load("poet", write_fake_adapter(tmp_path / "1", "r1"))  # 256 bytes
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await operator.load("bard", write_fake_adapter(tmp_path / "2", "r2"))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "worker.lora.max_" in str(refused.value.details())
        await operator.unload("poet")
        await operator.load("bard", write_fake_adapter(tmp_path / "2", "r2"))


async def test_a_slow_disk_holds_up_neither_answers_nor_other_calls(tmp_path: Path) -> None:
    model = FakeModel()
    async with worker(model) as (_, operator, _):
        await operator.load("poet", write_fake_adapter(tmp_path / "1", "r1"))
        model.lora.reading.clear()
        loading = asyncio.create_task(operator.load("bard", write_fake_adapter(tmp_path / "2", "r2")))
        assert await operator.generate(1, "r1") == truth("r1")
        assert [adapter.name for adapter in await operator.listed()] == ["poet"]
        model.lora.reading.set()
        assert (await loading).revision == "r2"


async def test_more_adapters_than_places_all_answer(tmp_path: Path) -> None:
    async with worker(adapter_patience_s=0.05) as (app, operator, _):  # type: ignore[arg-type]
        for number in range(12):
            await operator.load(f"poet-{number}", write_fake_adapter(tmp_path / str(number), f"r{number}"))
        for number in range(12):
            await operator.submit(
                number, PROMPT, adapter=f"poet-{number}", adapter_revision=f"r{number}", max_new_tokens=60
            )
        for number in range(12):
            await operator.end(number)
            assert operator.tokens(number) == truth(f"r{number}", 60)
        await idle(app)


async def test_adapters_of_the_configuration_are_there_from_the_start(tmp_path: Path) -> None:
    folder = write_fake_adapter(tmp_path, "r1")
    lora = LoraConfig(adapters={"poet": AdapterConfig(path=folder, tenants=("acme",))})
    async with worker(lora=lora) as (_, operator, _):
        assert await operator.generate(1, "r1") == truth("r1")
        (listed,) = await operator.listed()
        assert (listed.name, list(listed.tenants)) == ("poet", ["acme"])


async def test_a_configured_adapter_that_is_not_there_keeps_a_worker_from_starting() -> None:
    lora = LoraConfig(adapters={"poet": AdapterConfig(path="/nowhere")})
    with pytest.raises(WorkerStartError, match=r"worker\.lora\.adapters\.poet: .*/nowhere"):
        async with worker(lora=lora):
            pass


async def test_metrics_say_how_many_adapters_compute_and_what_all_of_them_take(tmp_path: Path) -> None:
    async with worker() as (_, operator, metrics):
        await operator.load("poet", write_fake_adapter(tmp_path / "1", "r1"))
        await operator.load("bard", write_fake_adapter(tmp_path / "2", "r2"))
        await operator.generate(1, "r1")

        def scrape() -> str:
            with urllib.request.urlopen(metrics, timeout=10) as response:
                page: str = response.read().decode()
                return page

        page = await asyncio.to_thread(scrape)

    assert 'radixgate_resident_adapters{worker="worker-0"} 1.0' in page
    assert 'radixgate_adapter_host_bytes{worker="worker-0"} 512.0' in page
