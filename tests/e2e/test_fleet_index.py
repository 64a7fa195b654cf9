"""What gateways know of caches is what the caches hold, name by name, whatever gets lost on the way.

Workers are processes that simulate. Gateways run here, so that one can look into them, and hear of the caches by way of
proxies that lose some of what is told.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from benchmarks.fleet_client import fleet_client
from gateway.dispatch.worker_view import WorkerView
from gateway.routing.index import DEVICE, EXPECTED, HOST
from radixgate.v1 import worker_pb2, worker_pb2_grpc
from tests.e2e.conversations import Talks
from tests.e2e.fleet import Fleet, FleetPlan, running_fleet
from tests.fakes.cache_reader import CacheReader
from tests.fakes.gateway_stack import Stack, gateway, until
from tests.fakes.worker_proxy import LossyFeed, WorkerProxy

pytestmark = [pytest.mark.e2e, pytest.mark.live, pytest.mark.timeout(240)]

PATIENCE_S = 30.0
# Pools that are full soon, so that pages come, move to the host, and go.
SETTINGS = (
    "worker.cache.num_slots=8192",
    "worker.cache.host_slots=8192",
    "worker.engine.max_running=32",
    "worker.engine.max_step_tokens=2048",
    "worker.engine.max_chunk_tokens=256",
)
Held = Counter[tuple[int, bytes]]  # place in the index, name


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("index"), FleetPlan(2, 0, SETTINGS)) as running:
        yield running


class Witness:
    """Hears itself from a worker what its cache holds."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._call: Any = worker_pb2_grpc.WorkerServiceStub(self._channel).Connect()
        self._reader = CacheReader()
        self._task = asyncio.create_task(self._read())

    async def held(self) -> Held:
        """Ask the worker, and return what it says."""
        wanted = self._reader.snapshots + 1
        await self._call.write(worker_pb2.ConnectRequest(snapshot_query=worker_pb2.SnapshotQuery()))
        await until(lambda: self._reader.snapshots >= wanted or self._task.done(), PATIENCE_S)
        places: dict[int, int] = {worker_pb2.CACHE_TIER_DEVICE: DEVICE, worker_pb2.CACHE_TIER_HOST: HOST}
        held: Held = Counter()
        for (tier, _, _, name), count in self._reader.held.items():
            held[places[tier], name] += count
        return held

    async def close(self) -> None:
        self._task.cancel()
        await self._channel.close()

    async def _read(self) -> None:
        async for message in self._call:
            self._reader.read(message)


def known(view: WorkerView) -> Held:
    """Return what a gateway takes a worker to have."""
    assert view._pages is not None
    counts = view._pages.holder._counts
    return Counter({(place, name): count for place in (DEVICE, HOST) for name, count in counts[place].items()})


@dataclass
class Watched:
    """A gateway that is told of each worker by a proxy of its own."""

    number: int
    entered: AsyncExitStack = field(default_factory=AsyncExitStack)
    feeds: list[LossyFeed] = field(default_factory=list)
    proxies: list[WorkerProxy] = field(default_factory=list)
    stack: Stack | None = None

    async def start(self, redis_url: str, workers: Sequence[str], listen: str = "127.0.0.1:0") -> None:
        for position, worker in enumerate(workers):
            self.feeds.append(LossyFeed(10 * self.number + position))
            self.proxies.append(await self.entered.enter_async_context(WorkerProxy(worker, feed=self.feeds[-1])))
        addresses = [proxy.address for proxy in self.proxies]
        made = gateway(redis_url, addresses, tenants=[], listen=listen)
        self.stack = await self.entered.enter_async_context(made)
        observer = self.stack.observer
        await until(lambda: observer.workers.total() == len(workers), PATIENCE_S)

    @property
    def running(self) -> Stack:
        assert self.stack is not None
        return self.stack

    def views(self) -> list[WorkerView]:
        """Return them in the order of the workers."""
        links = {link.address: link for link in self.running.app.serving.fleet.links()}
        return [links[proxy.address]._view for proxy in self.proxies]


@asynccontextmanager
async def watched(redis_url: str, workers: Sequence[str], count: int) -> AsyncIterator[list[Watched]]:
    async with AsyncExitStack() as stack:
        gateways = [Watched(number) for number in range(count)]
        for each in gateways:
            stack.push_async_callback(each.entered.aclose)
            await each.start(redis_url, workers)
        yield gateways


async def test_gateways_know_what_caches_hold_though_changes_get_lost_and_a_gateway_is_restarted(
    workers: Fleet,
) -> None:
    addresses = [worker.address for worker in workers.workers]
    async with watched(workers.redis.url, addresses, 2) as gateways, AsyncExitStack() as stack:
        witnesses = [Witness(address) for address in addresses]
        for witness in witnesses:
            stack.push_async_callback(witness.close)
        key = await gateways[0].running.add_tenant("acme")
        targets = [each.running.app.address for each in gateways]
        async with fleet_client(targets, key) as client, Talks(client, num_talks=12) as talks:
            await talks.have_had(240)
            await gateways[1].entered.aclose()
            again = gateways[1] = Watched(2)
            stack.push_async_callback(again.entered.aclose)
            await again.start(workers.redis.url, addresses, listen=targets[1])
            await talks.have_had(240)
            feeds = [feed for each in gateways for feed in each.feeds]
            for feed in feeds:
                feed.lost_share = 1.0  # the last changes are those that no gap shows
            await talks.have_had(24)
        for feed in feeds:
            feed.digests_left = 2  # two seconds, however long they are on a busy machine

        async def all_known() -> bool:
            held = [await witness.held() for witness in witnesses]
            return all([known(view) for view in each.views()] == held for each in gateways)

        async with asyncio.timeout(PATIENCE_S):
            while not await all_known():  # noqa: ASYNC110 - workers are asked
                await asyncio.sleep(0.02)
        assert min(feed.lost for feed in feeds) > 0
        assert min(feed.repeated for feed in feeds) > 0
        for each in gateways:
            each.running.app.serving.pages.index.check()
            for view in each.views():
                assert view._pages is not None
                assert view._pages.holder.num_pages(EXPECTED) == 0
    assert [outcome.error for outcome, _ in talks.turns if outcome.error] == []
