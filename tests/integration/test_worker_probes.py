"""A worker's HTTP checks and what it shows of its engine, over real sockets, also while the engine is stuck."""

import asyncio
import re
import threading
import urllib.request
from dataclasses import replace

import pytest

from tests.fakes.model import FakeModel, Pace, PacedModel
from tests.fakes.worker_stack import PATIENCE_S, Gateway, config, idle, running_worker
from tests.probes import probe, until_probe
from worker.app import WorkerApp

LIMIT_S = 0.3
IMPATIENT = replace(config(), stall_limit_s=LIMIT_S)


async def stalled_s(url: str) -> float:
    """The metric, as a scrape has it."""
    page = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=PATIENCE_S).read().decode())
    found = re.search(r'^radixgate_engine_stalled_seconds\{worker="worker-0"\} (\S+)$', page, re.MULTILINE)
    assert found is not None
    return float(found[1])


async def begun(pace: Pace) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if pace.begun:
                return
            await asyncio.sleep(0.01)


async def test_a_worker_that_serves_is_alive_and_ready() -> None:
    async with running_worker(IMPATIENT) as (_, addresses):
        for path in ("/livez", "/readyz"):
            assert await asyncio.to_thread(probe, addresses.metrics, path) == (200, "ok\n")
        assert (await asyncio.to_thread(probe, addresses.metrics, "/healthz"))[0] == 404


async def test_an_engine_that_is_stuck_in_a_forward_pass_is_seen_while_it_is_and_no_longer() -> None:
    pace = Pace()
    async with running_worker(IMPATIENT, PacedModel(pace=pace)) as (app, addresses):
        gateway = Gateway(addresses.grpc)
        assert await stalled_s(addresses.metrics) == 0.0
        with pace:
            await gateway.submit(1, [1, 2, 3])
            _, reason = await until_probe(addresses.metrics, "/livez", lambda answer: answer[0] == 503)
            assert re.fullmatch(
                r"nothing has moved for \d+ s while there is work; worker.stall_limit_s is 0.3\n", reason
            )
            assert await stalled_s(addresses.metrics) > LIMIT_S
            assert (await asyncio.to_thread(probe, addresses.metrics, "/readyz"))[0] == 200
        await gateway.end(1)
        await idle(app)
        assert await until_probe(addresses.metrics, "/livez", lambda answer: answer[0] == 200) == (200, "ok\n")
        assert await stalled_s(addresses.metrics) == 0.0
        await gateway.close()


async def test_a_worker_whose_event_loop_is_stuck_is_not_alive() -> None:
    async with running_worker(config()) as (_, addresses):
        answers: list[tuple[int, str]] = []
        asking = threading.Thread(target=lambda: answers.append(probe(addresses.metrics, "/livez")))
        asking.start()
        asking.join(PATIENCE_S)  # this is what blocks the loop
        assert answers == [(503, "the event loop has not answered for 2 s\n")]
        assert await until_probe(addresses.metrics, "/livez", lambda answer: answer[0] == 200) == (200, "ok\n")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_engine_whose_thread_has_ended_is_dead_at_once_and_what_waits_for_it_shows() -> None:
    async with running_worker(config()) as (app, addresses):
        gateway = Gateway(addresses.grpc)

        def leave(now: float) -> None:
            raise SystemExit

        app._engine.begin = leave  # type: ignore[method-assign]
        await gateway.submit(1, [1, 2, 3])
        answer = await until_probe(addresses.metrics, "/livez", lambda answer: answer[0] == 503)
        assert answer == (503, "the engine's thread has ended\n")
        await gateway.submit(2, [1, 2, 3])
        before = await stalled_s(addresses.metrics)
        await asyncio.sleep(0.05)
        assert await stalled_s(addresses.metrics) > before
        await gateway.close()


async def test_a_worker_that_drains_is_alive_and_not_ready() -> None:
    pace = Pace()
    app = WorkerApp(config(), PacedModel(pace=pace))
    addresses = await app.start()
    gateway = Gateway(addresses.grpc)
    with pace:
        await gateway.submit(1, [1, 2, 3])
        await begun(pace)
        stopping = asyncio.create_task(app.stop(drain_timeout_s=PATIENCE_S))
        answer = await until_probe(addresses.metrics, "/readyz", lambda answer: answer[0] == 503)
        assert answer == (503, "the worker is starting or stopping\n")
        assert (await asyncio.to_thread(probe, addresses.metrics, "/livez"))[0] == 200
    await gateway.end(1)
    await stopping
    await gateway.close()


async def test_a_worker_says_what_it_serves() -> None:
    async with running_worker(config()) as (_, addresses):
        page = await asyncio.to_thread(
            lambda: urllib.request.urlopen(addresses.metrics, timeout=PATIENCE_S).read().decode()
        )
    (line,) = [line for line in page.splitlines() if line.startswith("radixgate_worker_info{")]
    info = FakeModel().info
    for label in (f'model="{info.name}"', f'model_revision="{info.revision}"', 'device="cpu"', 'number_format="fp32"'):
        assert label in line
    assert re.search(r'version="\d+\.\d+', line)
    assert 'radixgate_kv_bytes_per_token{worker="worker-0"} 8.0' in page  # one layer, one head, K and V of 4 bytes
    assert "process_resident_memory_bytes" in page
