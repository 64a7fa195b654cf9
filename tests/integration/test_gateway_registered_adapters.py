"""Adapters that operators register: loaded on all workers, shared by percent, taken away."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from radixgate.v1 import admin_pb2, worker_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import FOUR, MANY, Stack, gateway, until
from tests.integration.registered_adapters import (
    ADMIN,
    NEW,
    NEXT,
    OLD,
    given_revisions,
    refusal,
    register,
    registered,
    revisions,
    roll_back,
    split,
    traffic,
    unregister,
    until_refused,
)


@pytest.fixture
async def workers() -> AsyncIterator[list[FakeWorker]]:
    async with FakeWorker("one") as one, FakeWorker("two") as two:
        yield [one, two]


@pytest.fixture
async def stack(redis_url: str, workers: list[FakeWorker]) -> AsyncIterator[Stack]:
    async with gateway(redis_url, workers, tenants=["acme", "globex"]) as running:
        yield running


async def test_a_registered_adapter_is_loaded_on_every_worker_and_answers(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    adapter = await register(stack, OLD)
    assert (adapter.name, adapter.model, traffic(adapter)) == ("poet", "tiny", {OLD: 100})
    assert {(each.worker, each.revision, each.loaded) for each in (await registered(stack)).placements} == {
        (worker.address, OLD, True) for worker in workers
    }
    assert all(load.beside for worker in workers for load in worker.loads)
    assert await given_revisions(stack, workers, 4) == {OLD: 4}


async def test_an_adapter_for_some_tenants_does_not_exist_for_others(stack: Stack, workers: list[FakeWorker]) -> None:
    await register(stack, OLD, tenants=["globex"])
    await stack.generate("globex", adapter="poet", **FOUR)
    refused = await stack.refused("acme", adapter="poet", **FOUR)
    unknown = await stack.refused("acme", adapter="tope", **FOUR)
    assert (refused.code, refused.message) == (grpc.StatusCode.NOT_FOUND, unknown.message.replace("tope", "poet"))


async def test_new_weights_get_their_percent_and_scopes_stay_with_theirs(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    await register(stack, OLD)
    assert traffic(await register(stack, NEW, 30)) == {OLD: 70, NEW: 30}
    first = await given_revisions(stack, workers, 200)
    assert 30 <= first[NEW] <= 90
    assert await given_revisions(stack, workers, 200) == first
    assert traffic(await split(stack, NEW[:8], 60)) == {OLD: 40, NEW: 60}
    assert (await given_revisions(stack, workers, 200))[NEW] > first[NEW]


async def test_all_traffic_for_new_weights_takes_the_old_ones_from_the_workers(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    await register(stack, OLD)
    adapter = await register(stack, NEW)
    assert (traffic(adapter), adapter.previous.revision) == ({NEW: 100}, OLD)
    assert await given_revisions(stack, workers, 8) == {NEW: 8}
    for worker in workers:
        await worker.until(lambda worker=worker: revisions(worker) == {NEW})


async def test_a_rollback_brings_back_what_was_there_before(stack: Stack, workers: list[FakeWorker]) -> None:
    await register(stack, OLD)
    await register(stack, NEW)
    for worker in workers:
        await worker.until(lambda worker=worker: revisions(worker) == {NEW})
    back = await roll_back(stack)
    assert (traffic(back), back.previous.revision) == ({OLD: 100}, NEW)
    assert await given_revisions(stack, workers, 8) == {OLD: 8}


async def test_a_canary_is_rolled_back_to_the_older_revision(stack: Stack, workers: list[FakeWorker]) -> None:
    await register(stack, OLD)
    await register(stack, NEW, 50)
    assert traffic(await roll_back(stack)) == {OLD: 100}
    assert await given_revisions(stack, workers, 20) == {OLD: 20}


async def test_weights_that_cannot_be_had_again_are_not_rolled_back_to(stack: Stack, workers: list[FakeWorker]) -> None:
    await register(stack, OLD)
    await register(stack, NEW)
    for worker in workers:
        await worker.until(lambda worker=worker: revisions(worker) == {NEW})
        worker.folders[f"/adapters/{OLD}"] = NEXT
    refused = await refusal(roll_back(stack))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WEIGHTS_CHANGED")
    assert traffic(await registered(stack)) == {NEW: 100}
    assert [revisions(worker) for worker in workers] == [{NEW}, {NEW}]


async def test_a_third_revision_is_refused_before_any_worker_reads_it(stack: Stack, workers: list[FakeWorker]) -> None:
    await register(stack, OLD)
    await register(stack, NEW, 50)
    num_loads = [len(worker.loads) for worker in workers]
    refused = await refusal(register(stack, NEXT, 10))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TWO_REVISIONS")
    assert [len(worker.loads) for worker in workers] == num_loads


async def test_what_a_worker_refuses_is_passed_on_and_undone(stack: Stack, workers: list[FakeWorker]) -> None:
    workers[1].refuses_loads = "adapter_config.json: missing"
    refused = await refusal(register(stack, OLD))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.fields["path"].startswith("adapter_config.json: missing")
    assert workers[1].address in refused.fields["path"]
    assert [revisions(worker) for worker in workers] == [set(), set()]
    assert (await refusal(registered(stack))).code is grpc.StatusCode.NOT_FOUND
    assert (await stack.refused(adapter="poet", **FOUR)).code is grpc.StatusCode.NOT_FOUND


async def test_workers_that_find_different_weights_are_named_and_keep_none(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    workers[1].folders[f"/adapters/{OLD}"] = NEXT
    refused = await refusal(register(stack, OLD))
    assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WEIGHTS_DIFFER")
    assert all(worker.address in refused.message for worker in workers)
    assert [revisions(worker) for worker in workers] == [set(), set()]


async def test_what_was_there_before_stays_when_a_registration_fails(stack: Stack, workers: list[FakeWorker]) -> None:
    by_hand = worker_pb2.LoadAdapterRequest(name="poet", path=f"/adapters/{OLD}")
    async with grpc.aio.insecure_channel(workers[0].address) as channel:
        await channel.unary_unary(
            "/radixgate.v1.WorkerService/LoadAdapter",
            request_serializer=worker_pb2.LoadAdapterRequest.SerializeToString,
            response_deserializer=worker_pb2.LoadAdapterResponse.FromString,
        )(by_hand)
    await stack.generate(adapter="poet", **FOUR)
    workers[1].refuses_loads = "no"
    await refusal(register(stack, OLD))
    assert [revisions(worker) for worker in workers] == [{OLD}, set()]


async def test_tenants_that_overlap_are_refused(stack: Stack, workers: list[FakeWorker]) -> None:
    await register(stack, OLD, tenants=["acme"])
    refused = await refusal(register(stack, NEW, tenants=["acme", "globex"]))
    assert refused.code is grpc.StatusCode.ALREADY_EXISTS
    assert "tenants acme" in refused.message
    await register(stack, NEW, tenants=["globex"])
    assert await given_revisions(stack, workers, 2, "acme") == {OLD: 2}
    assert await given_revisions(stack, workers, 2, "globex") == {NEW: 2}


async def test_who_names_an_adapter_for_the_wrong_tenants_is_told_for_whom_it_is(stack: Stack) -> None:
    await register(stack, OLD, tenants=["acme"])
    await register(stack, NEW, tenants=["globex"])
    refused = await refusal(registered(stack))
    assert (refused.code, refused.reason) == (grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND")
    assert refused.message.endswith("it is registered for acme; or for globex")


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("name", {"name": "Poet"}), ("path", {"path": ""}), ("traffic_percent", {"traffic_percent": 0}),
        ("traffic_percent", {"traffic_percent": 101}), ("traffic_percent", {"traffic_percent": 50}),
        ("tenants[1]", {"tenants": ["acme", "No"]}), ("tenants", {"tenants": [f"t{i}" for i in range(1025)]}),
        ("path", {"path": "/" * 4097}), ("request_id", {"request_id": "x" * 129}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_faults_of_a_registration_are_named(stack: Stack, field: str, request_: dict[str, Any]) -> None:
    refused = await refusal(register(stack, OLD, **request_))
    assert (refused.code, set(refused.fields)) == (grpc.StatusCode.INVALID_ARGUMENT, {field})


async def test_a_registration_repeated_by_its_request_id_changes_nothing(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    first = await register(stack, OLD, request_id="r1")
    await register(stack, NEW)
    assert await register(stack, OLD, request_id="r1") == first
    assert traffic(await registered(stack)) == {NEW: 100}


async def test_without_a_worker_nothing_can_be_registered_yet(redis_url: str, workers: list[FakeWorker]) -> None:
    async with gateway(redis_url, workers) as stack:
        for worker in workers:
            await worker.kill()
        await until(lambda: not stack.app.ready)
        refused = await refusal(register(stack, OLD, model="tiny"))
        assert refused.code is grpc.StatusCode.UNAVAILABLE
        assert refused.retry_delay_s is not None


# ------------------------------------------------------------------------------------------------------- unregistering


async def test_an_unregistered_adapter_is_there_for_nobody(stack: Stack, workers: list[FakeWorker]) -> None:
    await register(stack, OLD)
    unregistering = asyncio.create_task(unregister(stack))
    await until_refused(stack, grpc.StatusCode.NOT_FOUND, adapter="poet")
    assert await unregistering == 0
    assert [revisions(worker) for worker in workers] == [set(), set()]
    listed = await stack.admin.ListRegisteredAdapters(admin_pb2.ListRegisteredAdaptersRequest(), metadata=ADMIN)
    assert not listed.adapters
    assert (await refusal(unregister(stack))).code is grpc.StatusCode.NOT_FOUND


async def test_what_still_runs_after_the_grace_fails_and_is_counted(stack: Stack, workers: list[FakeWorker]) -> None:
    await register(stack, OLD)
    for worker in workers:
        worker.hold()
    calls = [asyncio.create_task(stack.refused(adapter="poet", **MANY)) for _ in range(4)]
    await until(lambda: sum(worker.num_running for worker in workers) == 4)
    assert await unregister(stack, grace_s=0.05) == 4
    assert {refused.code for refused in await asyncio.gather(*calls)} <= {
        grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE,
    }  # fmt: skip


@pytest.mark.parametrize(
    "grace", [{"seconds": -1}, {"seconds": 3601}, {"seconds": 2**62}, {"nanos": -(2**31)}, {"seconds": 1, "nanos": -1}],
    ids=str,
)  # fmt: skip
async def test_a_grace_that_is_no_such_duration_is_named(stack: Stack, grace: dict[str, int]) -> None:
    await register(stack, OLD)
    request = admin_pb2.UnregisterAdapterRequest(name="poet", grace=Duration(**grace))
    refused = await refusal(stack.admin.UnregisterAdapter(request, metadata=ADMIN, timeout=10))
    assert (refused.code, set(refused.fields)) == (grpc.StatusCode.INVALID_ARGUMENT, {"grace"})
    assert traffic(await registered(stack)) == {OLD: 100}


async def test_an_adapter_registered_again_after_it_was_unregistered_answers(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    await register(stack, OLD)
    await unregister(stack)
    await register(stack, OLD)
    assert await given_revisions(stack, workers, 4) == {OLD: 4}
    await asyncio.sleep(1.2)  # longer than keepers wait: what is wanted again must not be taken away
    assert await given_revisions(stack, workers, 4) == {OLD: 4}
