"""A gateway as its process runs it, with its metrics endpoint, in the test's own event loop."""

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import Addresses, GatewayApp, serve
from tests.fakes.fake_worker import FakeWorker
from tests.fakes.gateway_stack import RecordingObserver, Stack, channel_to, config_for


@dataclass(frozen=True, slots=True)
class Served:
    """How to reach it, and how to end it before the test's end."""

    stack: Stack  # its `app` is another one and runs nowhere
    metrics: str
    http: str
    stop: asyncio.Event
    running: asyncio.Task[None]

    async def shown(self, name: str, **labels: str) -> float | None:
        """Scrape; return the sample of that name and with exactly these labels."""
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(self.metrics, timeout=20).read().decode())
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return float(sample.value)
        return None

    async def until_shown(self, name: str, wanted: float, **labels: str) -> None:
        async with asyncio.timeout(20):
            while True:
                if await self.shown(name, **labels) == wanted:
                    return
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def served(
    redis_url: str, workers: Sequence[FakeWorker], *, tenants: Sequence[str] = ("acme",), **changes: Any
) -> AsyncIterator[Served]:
    config = config_for(redis_url, [worker.address for worker in workers], metrics_listen="127.0.0.1:0", **changes)
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    running = asyncio.create_task(serve(config, ready.set_result, stop))
    await asyncio.wait({running, ready}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        await running
    addresses: Addresses = ready.result()
    assert addresses.metrics is not None
    assert addresses.http is not None
    async with channel_to(addresses.grpc) as channel:
        stack = Stack(GatewayApp(config), RecordingObserver(), channel)
        for tenant_id in tenants:
            await stack.add_tenant(tenant_id)
        try:
            yield Served(stack, addresses.metrics, addresses.http, stop, running)
        finally:
            stop.set()
            with contextlib.suppress(grpc.aio.AioRpcError):
                await asyncio.wait_for(running, 30)
