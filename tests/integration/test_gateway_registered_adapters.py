"""Adapters that operators register: loaded on all workers, shared by percent, kept over restarts of everything."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from cli.embedded_redis import EmbeddedRedis
from radixgate.v1 import admin_pb2, worker_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, FOUR, MANY, Refusal, Stack, bearer, gateway, until

ADMIN = bearer(ADMIN_TOKEN)
OLD, NEW, NEXT = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc"


async def register(stack: Stack, revision: str, percent: int | None = None, **more: Any) -> admin_pb2.RegisteredAdapter:
    """A FakeWorker reads the revision off the path."""
    request = admin_pb2.RegisterAdapterRequest(
        **{"name": "poet", "path": f"/adapters/{revision}", "traffic_percent": percent, **more}
    )
    return (await stack.admin.RegisterAdapter(request, metadata=ADMIN, timeout=20)).adapter


async def registered(stack: Stack, name: str = "poet", **more: Any) -> admin_pb2.RegisteredAdapter:
    request = admin_pb2.GetRegisteredAdapterRequest(name=name, **more)
    return (await stack.admin.GetRegisteredAdapter(request, metadata=ADMIN, timeout=10)).adapter


async def roll_back(stack: Stack) -> admin_pb2.RegisteredAdapter:
    request = admin_pb2.RollBackAdapterRequest(name="poet")
    return (await stack.admin.RollBackAdapter(request, metadata=ADMIN, timeout=20)).adapter


async def split(stack: Stack, revision: str, percent: int) -> admin_pb2.RegisteredAdapter:
    request = admin_pb2.SplitAdapterTrafficRequest(name="poet", revision=revision, traffic_percent=percent)
    return (await stack.admin.SplitAdapterTraffic(request, metadata=ADMIN, timeout=10)).adapter


async def unregister(stack: Stack, grace_s: float | None = None) -> int:
    grace = None if grace_s is None else Duration(nanos=int(grace_s * 1e9))
    request = admin_pb2.UnregisterAdapterRequest(name="poet", grace=grace)
    return (await stack.admin.UnregisterAdapter(request, metadata=ADMIN, timeout=30)).failed_sequences


async def refusal(call: Awaitable[Any]) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return Refusal.of(refused.value)


def traffic(adapter: admin_pb2.RegisteredAdapter) -> dict[str, int]:
    return {each.revision: each.traffic_percent for each in adapter.revisions}


def revisions(worker: FakeWorker, name: str = "poet") -> set[str]:
    return {each.revision for each in worker.adapters if each.name == name}


async def given_revisions(stack: Stack, workers: list[FakeWorker], num: int, tenant_id: str = "acme") -> Counter[str]:
    """Send requests of as many scopes; return how many went to which revision."""
    before = [len(worker.submits) for worker in workers]
    calls = [stack.generate(tenant_id, adapter="poet", scope=f"user-{i}", **FOUR) for i in range(num)]
    await asyncio.gather(*calls)
    submits = [submit for worker, at in zip(workers, before, strict=True) for submit in worker.submits[at:]]
    return Counter(submit.adapter_revision for submit in submits)


async def until_refused(stack: Stack, code: grpc.StatusCode, **request: Any) -> None:
    """Wait until a gateway has heard of a change."""
    async with asyncio.timeout(10):
        while True:
            try:
                await stack.generate(**request, **FOUR)
            except grpc.aio.AioRpcError as error:
                if error.code() is code:
                    return
            await asyncio.sleep(0.01)


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


async def test_an_adapter_registered_again_after_it_was_unregistered_answers(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    await register(stack, OLD)
    await unregister(stack)
    await register(stack, OLD)
    assert await given_revisions(stack, workers, 4) == {OLD: 4}
    await asyncio.sleep(1.2)  # longer than keepers wait: what is wanted again must not be taken away
    assert await given_revisions(stack, workers, 4) == {OLD: 4}


# ------------------------------------------------------------------------------------------------- over restarts


async def test_adapters_outlive_every_gateway(redis_url: str, workers: list[FakeWorker]) -> None:
    async with gateway(redis_url, workers) as stack:
        await register(stack, OLD)
        await register(stack, NEW, 40)
        before = await given_revisions(stack, workers, 50)
        keys = stack.keys
    async with gateway(redis_url, workers, tenants=()) as stack:
        stack.keys.update(keys)
        assert traffic(await registered(stack)) == {OLD: 60, NEW: 40}
        assert await given_revisions(stack, workers, 50) == before


async def test_a_worker_that_starts_gets_what_it_lacks(stack: Stack, workers: list[FakeWorker]) -> None:
    await register(stack, OLD)
    await register(stack, NEW, 40)
    one = workers[0]
    await one.kill()
    one.adapters = []
    await one.start(one.address)
    await one.until(lambda: revisions(one) == {OLD, NEW})


async def test_a_worker_that_was_away_loses_what_is_no_longer_wanted(stack: Stack, workers: list[FakeWorker]) -> None:
    await register(stack, OLD)
    one = workers[0]
    await one.kill()
    await until(lambda: stack.observer.workers.total() == 1)
    await register(stack, NEW)
    assert {each.worker: each.error for each in (await registered(stack)).placements}[one.address] == "not connected"
    await one.start(one.address)
    await one.until(lambda: revisions(one) == {NEW})


async def test_what_workers_have_from_elsewhere_is_left_alone(stack: Stack, workers: list[FakeWorker]) -> None:
    one = workers[0]
    others = [
        worker_pb2.Adapter(name="poet", revision=NEXT, tenants=["x"]),
        worker_pb2.Adapter(name="bard", revision=NEXT),
    ]
    one.tell_adapters(*others)
    await register(stack, OLD, tenants=["acme"])
    await register(stack, NEW, tenants=["acme"])
    await one.until(lambda: {each.revision for each in one.adapters} == {NEXT, NEW})
    assert all(other in one.adapters for other in others)
    assert {unload.revision for unload in one.unloads} == {OLD}


async def test_a_folder_with_other_weights_by_now_is_not_used_and_placements_say_so(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    await register(stack, OLD)
    one, two = workers
    await one.kill()
    one.adapters, one.folders = [], {f"/adapters/{OLD}": NEXT}
    await one.start(one.address)
    await one.until(lambda: bool(one.unloads))
    assert revisions(one) == set()
    place = {each.worker: each for each in (await registered(stack)).placements}[one.address]
    assert not place.loaded
    assert NEXT in place.error
    assert await given_revisions(stack, [two], 4) == {OLD: 4}
    one.folders = {}  # put right, it is taken up without anybody's doing
    await one.until(lambda: revisions(one) == {OLD})


async def test_a_worker_that_fails_is_asked_again_and_its_reason_is_shown(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    await register(stack, OLD)
    one = workers[0]
    await one.kill()
    one.adapters, one.loads, one.refuses_loads = [], [], "no such folder"
    await one.start(one.address)
    await one.until(lambda: len(one.loads) >= 2)
    place = {each.worker: each for each in (await registered(stack)).placements}[one.address]
    assert (place.loaded, "no such folder" in place.error) == (False, True)
    one.refuses_loads = None
    await one.until(lambda: revisions(one) == {OLD})


async def test_where_the_chosen_revision_is_nowhere_the_other_one_answers(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    await register(stack, OLD)
    await register(stack, NEW, 50)
    for worker in workers:
        worker.refuses_loads = "no"
        worker.tell_adapters(*(each for each in worker.adapters if each.revision == OLD))
    await stack.generate(adapter="poet", **FOUR)
    assert await given_revisions(stack, workers, 20) == {OLD: 20}


async def test_a_registered_adapter_that_no_connected_worker_has_is_unavailable(
    stack: Stack, workers: list[FakeWorker]
) -> None:
    await register(stack, OLD)
    for worker in workers:
        worker.refuses_loads = "no"
        worker.tell_adapters()
    await until_refused(stack, grpc.StatusCode.UNAVAILABLE, adapter="poet")
    refused = await stack.refused(adapter="poet", **FOUR)
    assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_WORKER")


async def test_without_redis_what_is_registered_goes_on(workers: list[FakeWorker]) -> None:
    with EmbeddedRedis.start() as redis:
        async with gateway(redis.url, workers) as stack:
            await register(stack, OLD)
            await register(stack, NEW, 40)
            before = await given_revisions(stack, workers, 30)
            await asyncio.to_thread(redis.stop)
            assert await given_revisions(stack, workers, 30) == before
            for call in (register(stack, NEXT), split(stack, NEW, 100), unregister(stack), registered(stack)):
                assert (await refusal(call)).code is grpc.StatusCode.UNAVAILABLE
            assert await given_revisions(stack, workers, 30) == before


# --------------------------------------------------------------------------------------------------- several gateways


@contextlib.asynccontextmanager
async def two_gateways(redis_url: str, workers: list[FakeWorker]) -> AsyncIterator[tuple[Stack, Stack]]:
    async with gateway(redis_url, workers) as one, gateway(redis_url, workers, tenants=()) as other:
        other.keys.update(one.keys)
        yield one, other


async def test_what_one_gateway_is_told_the_others_follow(redis_url: str, workers: list[FakeWorker]) -> None:
    async with two_gateways(redis_url, workers) as (one, other):
        await register(one, OLD)
        await register(one, NEW)

        async def follows() -> bool:
            return await given_revisions(other, workers, 4) == {NEW: 4}

        await eventually(follows)
        assert traffic(await registered(other)) == {NEW: 100}
        await unregister(other)
        await until_refused(one, grpc.StatusCode.NOT_FOUND, adapter="poet")


async def test_gateways_do_not_fight_over_workers(redis_url: str, workers: list[FakeWorker]) -> None:
    async with two_gateways(redis_url, workers) as (one, other):
        for number in range(4):
            await register(one if number % 2 else other, str(number) * 16)
        last = "3" * 16
        for worker in workers:
            await worker.until(lambda worker=worker: revisions(worker) == {last})
        num_loads = [len(worker.loads) for worker in workers]
        await asyncio.sleep(1.0)  # whoever fights goes on
        assert [len(worker.loads) for worker in workers] == num_loads
        assert [revisions(worker) for worker in workers] == [{last}, {last}]


async def test_requests_that_run_while_weights_change_over_all_end_well(
    redis_url: str, workers: list[FakeWorker]
) -> None:
    async with two_gateways(redis_url, workers) as (one, other):
        await register(one, "0" * 16)
        done: list[int] = []
        stop = asyncio.Event()

        async def keep_asking(stack: Stack) -> None:
            while not stop.is_set():
                await stack.generate(adapter="poet", **FOUR)
                done.append(1)

        await eventually(lambda: has_adapter(other))
        asking = [asyncio.create_task(keep_asking(stack)) for stack in (one, other) for _ in range(2)]
        for number in range(1, 3):
            await register(one, str(number) * 16)
            for worker in workers:
                await worker.until(lambda worker=worker, n=number: revisions(worker) == {str(n) * 16})
        stop.set()
        await asyncio.gather(*asking)
        assert len(done) > 20


async def has_adapter(stack: Stack) -> bool:
    try:
        await stack.generate(adapter="poet", **FOUR)
    except grpc.aio.AioRpcError:
        return False
    return True


async def eventually(condition: Callable[[], Awaitable[bool]], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - conditions of all kinds, with a deadline
            await asyncio.sleep(0.01)
