"""A gateway's HTTP checks and what it shows of its workers and of operators' wishes, over real sockets."""

import asyncio
import re
import threading
import time

from metrics.loop import LoopWatch
from radixgate.v1 import admin_pb2
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import ADMIN_TOKEN, FOUR, MANY, bearer
from tests.fakes.served_gateway import Served, served
from tests.integration.registered_adapters import register
from tests.probes import probe, until_probe

ADMIN = bearer(ADMIN_TOKEN)
UNDERTAKINGS = "radixgate_gateway_pending_undertakings"


async def ready(gateway: Served) -> None:
    await until_probe(gateway.metrics, "/readyz", lambda answer: answer == (200, "ok\n"))


async def test_a_gateway_is_alive_at_once_and_ready_when_a_worker_is_connected(redis_url: str) -> None:
    worker = FakeWorker()
    await worker.start()
    address = worker.address
    await worker.kill()
    async with served(redis_url, [worker]) as gateway:
        assert await asyncio.to_thread(probe, gateway.metrics, "/livez") == (200, "ok\n")
        assert await asyncio.to_thread(probe, gateway.metrics, "/readyz") == (503, "no worker is connected\n")
        await worker.start(address)
        await ready(gateway)
        await worker.kill()
        await until_probe(gateway.metrics, "/readyz", lambda answer: answer == (503, "no worker is connected\n"))


async def test_a_gateway_that_drains_is_alive_and_not_ready(redis_url: str, worker: FakeWorker) -> None:
    async with served(redis_url, [worker]) as gateway:
        await ready(gateway)
        worker.hold()
        call = gateway.stack.call(**MANY)
        await worker.until(lambda: worker.num_running == 1)
        gateway.stop.set()
        answer = await until_probe(gateway.metrics, "/readyz", lambda answer: answer[0] == 503)
        assert answer == (503, "the gateway is starting or draining\n")
        assert await asyncio.to_thread(probe, gateway.metrics, "/livez") == (200, "ok\n")
        worker.go()
        assert len([message async for message in call]) > 0
        await asyncio.wait_for(asyncio.shield(gateway.running), 20)


async def test_a_gateway_whose_event_loop_is_stuck_is_not_alive(redis_url: str, worker: FakeWorker) -> None:
    async with served(redis_url, [worker]) as gateway:
        await ready(gateway)
        answers: list[tuple[int, str]] = []
        asking = threading.Thread(target=lambda: answers.append(probe(gateway.metrics, "/livez")))
        asking.start()
        deadline = time.monotonic() + 20
        while asking.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)  # noqa: ASYNC251 - this is what blocks the loop
        assert answers == [(503, "the event loop has not answered for 2 s\n")]
        assert await asyncio.to_thread(probe, gateway.metrics, "/livez") == (200, "ok\n")


def test_a_loop_that_is_closed_is_not_alive() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    assert LoopWatch(loop).why_not_live() == "the event loop is closed"


async def test_a_gateway_shows_its_version_and_who_has_requests_of_it(redis_url: str, worker: FakeWorker) -> None:
    async with served(redis_url, [worker]) as gateway:
        await ready(gateway)
        name = "radixgate_gateway_in_flight_requests"
        assert await gateway.shown(name, worker=worker.address) == 0
        worker.hold()
        calls = [gateway.stack.call(**FOUR) for _ in range(3)]
        await gateway.until_shown(name, 3, worker=worker.address)
        worker.go()
        for call in calls:
            assert [message async for message in call]
        await gateway.until_shown(name, 0, worker=worker.address)
        page = await asyncio.to_thread(probe, gateway.metrics, "/metrics")
    assert re.search(r'^radixgate_gateway_info\{version="\d+\.\d+.*"\} 1.0$', page[1], re.MULTILINE)
    assert "process_cpu_seconds_total" in page[1]


async def test_an_adapter_that_a_worker_does_not_take_is_pending_until_it_does(
    redis_url: str, worker: FakeWorker
) -> None:
    async with served(redis_url, [worker]) as gateway:
        await ready(gateway)
        await register(gateway.stack, "r1")
        assert await gateway.shown(UNDERTAKINGS, kind="adapter_load") == 0
        worker.tell_adapters()  # it has forgotten it, and will not have it again
        worker.refuses_loads = "no room"
        await gateway.until_shown(UNDERTAKINGS, 1, kind="adapter_load")
        worker.refuses_loads = None
        await gateway.until_shown(UNDERTAKINGS, 0, kind="adapter_load")


async def test_a_purge_that_a_worker_was_away_for_is_pending_until_it_is_back(redis_url: str) -> None:
    async with FakeWorker("one") as one, FakeWorker("two") as two:
        async with served(redis_url, [one, two]) as gateway:
            await ready(gateway)
            await gateway.until_shown("radixgate_gateway_worker_connected", 1, worker=two.address)
            for _ in range(2):
                await gateway.stack.generate(**FOUR)
            await two.kill()
            await gateway.until_shown("radixgate_gateway_worker_connected", 0, worker=two.address)
            request = admin_pb2.InvalidateCacheRequest(tenant_id="acme", purge=True)
            await gateway.stack.admin.InvalidateCache(request, metadata=ADMIN, timeout=20)
            await gateway.until_shown(UNDERTAKINGS, 1, kind="purge")
            await two.start(two.address)
            await gateway.until_shown(UNDERTAKINGS, 0, kind="purge")
