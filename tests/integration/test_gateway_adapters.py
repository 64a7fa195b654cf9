"""Adapters as tenants see them through a gateway: their own, in the revision that workers have now."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from radixgate.v1 import inference_pb2, worker_pb2
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import FOUR, IDS, Stack, bearer, gateway, until


def adapter(name: str, revision: str, tenants: Sequence[str] = (), loaded_at: int = 0) -> worker_pb2.Adapter:
    return worker_pb2.Adapter(name=name, revision=revision, tenants=tenants, load_time=Timestamp(seconds=loaded_at))


@pytest.fixture
async def stack(redis_url: str, worker: FakeWorker) -> AsyncIterator[Stack]:
    worker.adapters = [adapter("poet", "r1"), adapter("secret", "s1", ["globex"])]
    async with gateway(redis_url, [worker], tenants=["acme", "globex"]) as running:
        yield running


async def names(stack: Stack, tenant_id: str) -> list[str]:
    listed = await stack.inference.ListModels(
        inference_pb2.ListModelsRequest(), metadata=bearer(stack.keys[tenant_id]), timeout=10
    )
    return list(listed.models[0].adapters)


async def test_tenants_see_what_is_for_all_and_what_is_their_own(stack: Stack) -> None:
    assert await names(stack, "acme") == ["poet"]
    assert await names(stack, "globex") == ["poet", "secret"]


async def test_another_tenants_adapter_is_refused_like_one_that_does_not_exist(
    stack: Stack, worker: FakeWorker
) -> None:
    assert (await stack.generate("globex", adapter="secret", **FOUR)).token_ids == completion(IDS, 4)
    num_submits = len(worker.submits)
    refused = await stack.refused("acme", adapter="secret", request_id="r", **FOUR)
    unknown = await stack.refused("acme", adapter="nothin", request_id="r", **FOUR)

    assert refused.code is grpc.StatusCode.NOT_FOUND
    assert refused.message == unknown.message.replace("nothin", "secret")
    assert (refused.reason, refused.metadata) == (unknown.reason, unknown.metadata)
    assert len(worker.submits) == num_submits


async def test_tenants_mean_their_own_adapter_by_a_name_that_both_have(stack: Stack, worker: FakeWorker) -> None:
    worker.tell_adapters(adapter("poet", "a1", ["acme"]), adapter("poet", "g1", ["globex"]))
    for tenant_id, revision in (("acme", "a1"), ("globex", "g1")):
        await stack.generate(tenant_id, adapter="poet", **FOUR)
        assert worker.submits[-1].adapter_revision == revision


async def test_an_adapter_that_comes_later_can_be_used_and_one_that_goes_cannot(
    stack: Stack, worker: FakeWorker
) -> None:
    worker.tell_adapters(adapter("bard", "b1"))
    assert (await stack.generate(adapter="bard", **FOUR)).token_ids == completion(IDS, 4)
    assert (await stack.refused(adapter="poet", **FOUR)).code is grpc.StatusCode.NOT_FOUND


async def test_a_request_that_meets_a_replaced_adapter_is_answered_with_the_new_one(
    stack: Stack, worker: FakeWorker
) -> None:
    worker.tells_late = True
    worker.adapters = [adapter("poet", "r2")]
    done = await stack.generate(adapter="poet", **FOUR)

    assert done.token_ids == completion(IDS, 4)
    assert [submit.adapter_revision for submit in worker.submits] == ["r1", "r2"]
    assert worker.submits[0].prompt[0].extra_key != worker.submits[1].prompt[0].extra_key


async def test_a_request_that_meets_an_adapter_which_is_gone_is_told_that_there_is_none(
    stack: Stack, worker: FakeWorker
) -> None:
    worker.tells_late = True
    worker.adapters = []
    refused = await stack.refused(adapter="poet", **FOUR)
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND")


async def test_an_adapter_that_goes_on_changing_is_unavailable_for_now(stack: Stack, worker: FakeWorker) -> None:
    worker.adapters = []  # and nobody is told
    refused = await stack.refused(adapter="poet", **FOUR)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "ADAPTER_CHANGED")
    assert refused.retry_delay_s is not None
    assert len(worker.submits) == 2


async def test_an_adapter_that_is_unloaded_in_mid_stream_ends_the_stream_once(stack: Stack, worker: FakeWorker) -> None:
    worker.hold()
    call = stack.call(adapter="poet", **FOUR)
    await worker.until(lambda: worker.num_running == 1)
    worker.step()
    first = await call.read()
    assert isinstance(first, inference_pb2.GenerateResponse)
    worker.end_all(worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND, "adapter")
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await call.read()
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    assert len(worker.submits) == 1


async def test_requests_go_only_to_workers_that_have_the_adapter(redis_url: str) -> None:
    async with FakeWorker("one") as one, FakeWorker("two") as two:
        two.adapters = [adapter("poet", "r1")]
        async with gateway(redis_url, [one, two]) as stack:
            for _ in range(6):
                await stack.generate(adapter="poet", **FOUR)
            assert (len(one.submits), len(two.submits)) == (0, 6)
            for _ in range(6):
                await stack.generate(**FOUR)
            assert len(one.submits) > 0
            assert len(one.submits) + len(two.submits) == 12


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([("r1", 5), ("r1", 5), ("r2", 9)], "r1"),
        ([("r2", 5), ("r2", 5), ("r1", 9)], "r2"),
        ([("r1", 5), ("r2", 9)], "r2"),
        ([("r2", 5), ("r1", 9)], "r1"),
        ([("r1", 5), ("r2", 5)], "r2"),
    ],
    ids=["most have it", "most have the other", "newer", "older", "as new"],
)
async def test_a_name_in_several_revisions_means_the_one_that_most_workers_have_and_then_the_newest(
    redis_url: str, reports: list[tuple[str, int]], expected: str
) -> None:
    workers = [FakeWorker(f"w{number}") for number in range(len(reports))]
    for worker, (revision, loaded_at) in zip(workers, reports, strict=True):
        worker.adapters = [adapter("poet", revision, loaded_at=loaded_at)]
        await worker.start()
    try:
        async with gateway(redis_url, workers) as stack:
            for _ in range(4):
                await stack.generate(adapter="poet", **FOUR)
            assert await names(stack, "acme") == ["poet"]
    finally:
        for worker in workers:
            await worker.kill()
    submits = [submit for worker in workers for submit in worker.submits]
    assert [submit.adapter_revision for submit in submits] == [expected] * 4


async def test_an_adapter_whose_only_worker_is_away_is_unavailable_and_not_missing(redis_url: str) -> None:
    async with FakeWorker("one") as one, FakeWorker("two") as two:
        two.adapters = [adapter("poet", "r1"), adapter("secret", "s1", ["globex"])]
        async with gateway(redis_url, [one, two]) as stack:
            await stack.generate(adapter="poet", **FOUR)
            await two.kill()
            await until(lambda: stack.observer.workers.total() == 1)
            refused = await stack.refused(adapter="poet", **FOUR)
            assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_WORKER")
            assert refused.retry_delay_s is not None
            assert (await stack.refused(adapter="secret", **FOUR)).code is grpc.StatusCode.NOT_FOUND
            await stack.generate(**FOUR)


async def test_a_worker_is_not_used_before_it_has_told_its_adapters(redis_url: str, worker: FakeWorker) -> None:
    worker.keeps_quiet = True
    async with gateway(redis_url, [worker.address]) as stack:
        await worker.until(lambda: worker.num_links == 1)
        await asyncio.sleep(0)
        assert not stack.app.ready
        worker.tell_adapters(adapter("poet", "r1"))
        await stack.ready()
        assert await names(stack, "acme") == ["poet"]
