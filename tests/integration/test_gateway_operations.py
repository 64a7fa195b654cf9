"""How a gateway behaves as a server: health, reflection, draining, and peers that die and come back."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from cli.embedded_redis import find_program
from gateway.app import Addresses, GatewayApp, serve
from gateway.config import FailoverConfig, RedisConfig, ServerConfig, WorkerLinkConfig
from radixgate.v1 import admin_pb2, inference_pb2
from tests.fakes.cable import Cable
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import (
    ADMIN_TOKEN,
    FOUR,
    IDS,
    MANY,
    Completion,
    RecordingObserver,
    Refusal,
    Stack,
    bearer,
    config_for,
    gateway,
    health,
    health_stub,
    until,
)

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
INFERENCE = "radixgate.v1.InferenceService"
ADMIN = "radixgate.v1.AdminService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


# ------------------------------------------------------------------------------------------------ health, reflection


async def test_health_is_told_for_each_service_without_a_credential(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as stack:
        for service in ("", INFERENCE, ADMIN):
            assert await health(stack, service) == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await health(stack, "nobody.knows")
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND


async def test_inference_serves_while_a_worker_is_connected(redis_url: str) -> None:
    worker = await FakeWorker().start()
    async with gateway(redis_url, [worker]) as stack:
        watch = health_stub(stack).Watch(health_pb2.HealthCheckRequest(service=INFERENCE))
        assert (await watch.read()).status == SERVING
        await worker.kill()
        assert (await watch.read()).status == NOT_SERVING
        assert await health(stack, "") == SERVING
        await worker.start(worker.address)
        assert (await watch.read()).status == SERVING
        watch.cancel()
        await worker.kill()


async def test_watching_an_unknown_service_waits_for_it(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as stack:
        watch = health_stub(stack).Watch(health_pb2.HealthCheckRequest(service="nobody.knows"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


async def test_services_describe_themselves(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as stack:
        make: Any = reflection_pb2_grpc.ServerReflectionStub
        stub = make(stack.channel)
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=INFERENCE),
        ]
        listed, described = [answer async for answer in stub.ServerReflectionInfo(iter(requests))]
        names = {service.name for service in listed.list_services_response.service}
        assert {INFERENCE, ADMIN, "grpc.health.v1.Health"} <= names
        assert described.file_descriptor_response.file_descriptor_proto


# -------------------------------------------------------------------------------------------- workers that come and go


async def test_a_gateway_without_its_worker_says_so_and_serves_once_it_is_there(redis_url: str) -> None:
    worker = await FakeWorker().start()
    await worker.kill()
    async with gateway(redis_url, [worker.address]) as stack:
        for model in ("", "tiny"):
            refusal = await stack.refused(model=model, **FOUR)
            assert (refusal.code, refusal.reason) == (UNAVAILABLE, "NO_WORKER")
            # The time until the next attempt to connect, and the configured back-off is at most 0.2 s.
            assert refusal.retry_delay_s is not None
            assert 0 <= refusal.retry_delay_s <= 0.2
        await worker.start(worker.address)
        await stack.ready()
        assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)
        await worker.kill()


async def test_where_nothing_moves_a_lost_worker_ends_its_streams_with_details(redis_url: str) -> None:
    worker, stay = await FakeWorker().start(), FailoverConfig(max_moves=0, wait_for_worker_s=0)
    async with FakeWorker("other") as other, gateway(redis_url, [worker, other], failover=stay) as stack:
        worker.hold()
        other.hold()
        calls = [stack.call(**MANY) for _ in range(4)]
        await until(lambda: worker.num_running == other.num_running == 2)
        for each in (worker, other):
            each.step()
        for call in calls:
            await call.read()
        await worker.kill()
        other.go()
        outcomes = await asyncio.gather(*(drain(call) for call in calls))
        lost = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
        assert len(lost) == 2
        for refusal in lost:
            assert (refusal.code, refusal.reason) == (UNAVAILABLE, "WORKER_LOST")
            assert refusal.metadata["worker"] == worker.address
        assert stack.observer.workers[worker.address] == 0
        # What remains serves on, and a known model without a worker is away rather than unknown.
        assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)
        assert stack.observer.open_streams.total() == 0


GenerateCall = grpc.aio.UnaryStreamCall[inference_pb2.GenerateRequest, inference_pb2.GenerateResponse]


async def drain(call: GenerateCall) -> Completion | Refusal:
    """Read to the end, whichever it is."""
    done = Completion()
    try:
        while (message := await call.read()) is not grpc.aio.EOF:
            done.messages.append(message)  # type: ignore[arg-type]
    except grpc.aio.AioRpcError as error:
        return Refusal.of(error)
    return done


async def test_a_known_model_whose_workers_are_all_gone_is_unavailable_and_not_unknown(redis_url: str) -> None:
    first = await FakeWorker("a", model="m1").start()
    async with FakeWorker("b", model="m2") as second, gateway(redis_url, [first, second]) as stack:
        await first.kill()
        await until(lambda: stack.observer.workers[first.address] == 0)
        assert (await stack.refused(model="m1", **FOUR)).code is UNAVAILABLE
        assert (await stack.refused(model="m3", **FOUR)).code is grpc.StatusCode.NOT_FOUND
        assert (await stack.generate(model="m2", **FOUR)).token_ids == completion(IDS, 4)


async def test_a_restarted_worker_is_found_again_and_keeps_no_ghosts(redis_url: str) -> None:
    worker = await FakeWorker().start()
    async with gateway(redis_url, [worker]) as stack:
        for _ in range(3):
            worker.hold()
            call = stack.call(**MANY)
            await worker.until(lambda: worker.num_running == 1)
            await worker.kill()
            assert isinstance(await drain(call), Refusal)
            await worker.start(worker.address)
            await stack.ready()
            worker.go()
            assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)
        assert worker.num_running == 0
    await worker.kill()


async def test_workers_of_two_versions_of_a_model_never_mix(redis_url: str) -> None:
    async with FakeWorker("a") as a, FakeWorker("b") as b, FakeWorker("new") as new:
        new.model.model_revision = "revision-2"
        async with gateway(redis_url, [a, b, new]) as stack:
            for _ in range(6):
                await stack.generate(**FOUR)
        assert (len(a.submits), len(b.submits), len(new.submits)) == (3, 3, 0)


async def test_a_worker_with_an_unusable_model_is_left_out(redis_url: str, worker: FakeWorker) -> None:
    async with FakeWorker("broken") as broken:
        broken.model.tokenizer_json = b"{"
        async with gateway(redis_url, [broken.address, worker.address]) as stack:
            await stack.ready()
            for _ in range(4):
                await stack.generate(**FOUR)
            assert broken.submits == []


# ------------------------------------------------------------------------------------------------------ Redis goes away


class RestartableRedis:
    """A server that keeps address and data over a restart."""

    def __init__(self, data_dir: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._data_dir = data_dir
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        options = {"port": self._port, "bind": "127.0.0.1", "dir": self._data_dir, "appendonly": "yes", "save": ""}
        command = [find_program(), *(str(part) for name, value in options.items() for part in (f"--{name}", value))]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def answers(self) -> bool:
        with redis.Redis.from_url(self.url) as client, contextlib.suppress(redis.RedisError):
            return bool(client.ping())
        return False

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@pytest.fixture
async def restartable(tmp_path: Path) -> AsyncIterator[RestartableRedis]:
    server = RestartableRedis(tmp_path)
    server.start()
    await until(server.answers)
    yield server
    server.kill()


async def test_without_redis_known_tenants_are_served_and_nobody_else_until_it_is_back(
    worker: FakeWorker, restartable: RestartableRedis
) -> None:
    async with gateway(restartable.url, [worker], tenants=["acme", "quiet"]) as stack:
        before = await stack.generate(**FOUR)
        for _ in range(2):
            worker.hold()
            running = stack.call(**MANY)
            await worker.until(lambda: worker.num_running == 1)
            stack.keys["quiet"] = await stack.add_key("quiet")  # which this gateway has not seen in use
            restartable.kill()
            for refusal in (await stack.refused("quiet", **FOUR), await admin_refused(stack)):
                assert (refusal.code, refusal.reason) == (UNAVAILABLE, "IDENTITY_STORE_UNAVAILABLE")
                assert "cannot be reached" in refusal.message
            # A stream that was admitted needs Redis no more.
            worker.go()
            assert len((await drained(running)).token_ids) == 400
            for _ in range(3):  # with the same key and the same namespace
                again = await stack.generate(**FOUR)
                assert again.token_ids == before.token_ids
                assert again.usage.cached.device == len(IDS) - 1
            restartable.start()
            assert (await served_again(stack, "quiet")).token_ids == before.token_ids
            assert (await stack.generate(**FOUR)).usage.cached.device == len(IDS) - 1


async def test_a_redis_that_hangs_is_given_up_on_in_time(worker: FakeWorker, restartable: RestartableRedis) -> None:
    quick = RedisConfig(url=restartable.url, timeout_s=1.0)
    async with gateway(restartable.url, [worker], tenants=["acme", "quiet"], redis=quick) as stack:
        await stack.generate(**FOUR)
        restartable.pause()
        calls = [stack.generate(**FOUR) for _ in range(20)]
        refusals = [stack.refused("quiet", **FOUR) for _ in range(20)]
        async with asyncio.timeout(10):
            assert {tuple(each.token_ids) for each in await asyncio.gather(*calls)} == {tuple(completion(IDS, 4))}
            assert {each.code for each in await asyncio.gather(*refusals)} == {UNAVAILABLE}
        restartable.resume()
        assert (await served_again(stack, "quiet")).token_ids == completion(IDS, 4)


async def served_again(stack: Stack, tenant_id: str) -> Completion:
    """Wait until a tenant is served that the gateway does not know by itself."""
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                return await stack.generate(tenant_id, **FOUR)


async def drained(call: GenerateCall) -> Completion:
    done = await drain(call)
    assert isinstance(done, Completion)
    return done


async def admin_refused(stack: Stack) -> Refusal:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stack.admin.ListTenants(admin_pb2.ListTenantsRequest(), metadata=bearer(ADMIN_TOKEN))
    return Refusal.of(failure.value)


async def test_a_gateway_starts_and_ends_without_redis(worker: FakeWorker) -> None:
    async with asyncio.timeout(4):  # it has nothing to write, and does not wait until somebody would take it
        async with gateway("redis://127.0.0.1:1/0", [worker], tenants=[]) as stack:
            assert (await admin_refused(stack)).reason == "IDENTITY_STORE_UNAVAILABLE"
            assert await health(stack, INFERENCE) == SERVING


# ------------------------------------------------------------------------------------------------------------ the end


async def test_draining_says_so_refuses_new_calls_and_finishes_running_ones(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker]) as stack:
        worker.hold()
        running = stack.call(**MANY)
        await worker.until(lambda: worker.num_running == 1)
        watch = health_stub(stack).Watch(health_pb2.HealthCheckRequest(service=""))
        assert (await watch.read()).status == SERVING
        stopping = asyncio.create_task(stack.app.stop())
        assert (await watch.read()).status == NOT_SERVING
        for service in ("", INFERENCE, ADMIN):
            assert await health(stack, service) == NOT_SERVING
        refusal = await stack.refused(**FOUR)
        assert (refusal.code, refusal.reason) == (UNAVAILABLE, "GATEWAY_SHUTTING_DOWN")
        worker.go()
        assert len((await drained(running)).token_ids) == 400
        await asyncio.wait_for(stopping, 5)


async def test_streams_that_outlast_the_drain_time_end_with_unavailable(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], server=ServerConfig(drain_s=0.2)) as stack:
        worker.hold()
        running = stack.call(**MANY)
        await worker.until(lambda: worker.num_running == 1)
        await asyncio.wait_for(stack.app.stop(), 5)
        outcome = await drain(running)
        assert isinstance(outcome, Refusal)
        assert (outcome.code, outcome.reason) == (UNAVAILABLE, "GATEWAY_SHUTTING_DOWN")
        await worker.until(lambda: worker.num_running == 0 and worker.num_links == 0)


async def test_an_open_health_watch_does_not_hold_up_the_end(redis_url: str, worker: FakeWorker) -> None:
    async with gateway(redis_url, [worker], server=ServerConfig(drain_s=60)) as stack:
        watch = health_stub(stack).Watch(health_pb2.HealthCheckRequest(service=""))
        await watch.read()
        await asyncio.wait_for(stack.app.stop(), 5)


async def test_stopping_twice_is_harmless_and_a_port_in_use_is_an_error(redis_url: str) -> None:
    first = GatewayApp(config_for(redis_url, []), RecordingObserver())
    await first.start()
    second = GatewayApp(config_for(redis_url, [], listen=first.address), RecordingObserver())
    with pytest.raises(OSError, match=f"cannot listen on {first.address}"):
        await second.start()
    for app in (second, first, first):
        await app.stop()


async def test_a_running_gateway_shows_its_metrics_until_it_is_told_to_stop(redis_url: str, worker: FakeWorker) -> None:
    stop = asyncio.Event()
    ready: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
    config = config_for(redis_url, [worker.address], metrics_listen="127.0.0.1:0")
    running = asyncio.create_task(serve(config, ready.set_result, stop))
    addresses = await asyncio.wait_for(ready, 10)
    url = addresses.metrics
    assert url is not None
    async with grpc.aio.insecure_channel(addresses.grpc) as channel:
        stack = Stack(GatewayApp(config), RecordingObserver(), channel)
        await stack.add_tenant("acme")
        await until_serving(stack)
        await stack.generate(**FOUR)
        scraped = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read().decode())
    assert 'radixgate_gateway_requests_total{code="OK",method="InferenceService/Generate",tenant="acme"} 1.0' in scraped
    stop.set()
    await asyncio.wait_for(running, 10)
    await worker.until(lambda: worker.num_links == 0)


async def until_serving(stack: Stack) -> None:
    watch = health_stub(stack).Watch(health_pb2.HealthCheckRequest(service=INFERENCE), timeout=10)
    while (await watch.read()).status != SERVING:
        pass
    watch.cancel()


# --------------------------------------------------------------------------------------------------------- keepalive


@pytest.mark.parametrize(("permitted_s", "kept"), [(0.1, True), (60.0, False)])
async def test_clients_may_ping_as_often_as_configured_and_not_more(
    redis_url: str, permitted_s: float, kept: bool
) -> None:
    async with gateway(redis_url, [], tenants=[], server=ServerConfig(min_ping_interval_s=permitted_s)) as stack:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.keepalive_time_ms", 250)]
        options.append(("grpc.http2.max_pings_without_data", 0))
        async with grpc.aio.insecure_channel(stack.app.address, options=options) as channel:
            watch = health_stub(Stack(stack.app, stack.observer, channel)).Watch(health_pb2.HealthCheckRequest())
            await watch.read()
            idle = asyncio.ensure_future(watch.read())
            # gRPC looks at its timers about once a second and forgives a few pings.
            done, _ = await asyncio.wait({idle}, timeout=4.5 if kept else 15)
            assert bool(done) is not kept
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await idle


async def test_a_worker_behind_a_dead_network_is_noticed_and_found_again(redis_url: str, worker: FakeWorker) -> None:
    link = WorkerLinkConfig(
        connect_timeout_s=0.5,
        keepalive_time_s=0.3,
        keepalive_timeout_s=0.3,
        backoff_initial_s=0.02,
        backoff_max_s=0.1,
    )
    async with Cable(worker.address) as cable, gateway(redis_url, [cable.address], worker_link=link) as stack:
        await stack.ready()
        worker.hold()
        call = stack.call(**MANY)
        await worker.until(lambda: worker.num_running == 1)
        # Idle but healthy: pings alone keep the link.
        idle = asyncio.ensure_future(call.read())
        done, _ = await asyncio.wait({idle}, timeout=4.5)
        assert not done
        cable.pull()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await asyncio.wait_for(idle, 10)
        assert Refusal.of(failure.value).reason == "WORKER_LOST"
        cable.plug()
        worker.go()
        await stack.ready()
        assert (await stack.generate(**FOUR)).token_ids == completion(IDS, 4)
