"""What gateways hear of a worker's cache and load, over real sockets: what they believe is what is there."""

import asyncio
import random
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from hicache.keys import ExtraKey, Namespace, PrefixKey, page_hashes
from radixgate.v1 import worker_pb2, worker_pb2_grpc
from tests.fakes.cache_reader import CacheReader
from tests.fakes.model import FakeModel, PacedModel
from tests.fakes.worker_stack import KEY_A, PATIENCE_S, Gateway, config, idle, running_worker
from worker.app import MAX_MESSAGE_BYTES, WorkerApp
from worker.config import CacheConfig, SimulationConfig, StorageConfig, WorkerConfig
from worker.simulate.model import SimulatedModel

FAST = SimulationConfig(enabled=True, speed=1000.0)
PAGE = 16  # tokens of a page of names
SENT, DROPPED = (
    f'radixgate_cache_events_total{{outcome="{outcome}",worker="worker-0"}}' for outcome in ("sent", "dropped")
)
KEYS = tuple(ExtraKey(tenant).digest(b"a secret of the test") for tenant in ("acme", "bolt", "corp"))


# What has been sent and not read is little, and of this connection alone.
_NARROW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16_384), ("grpc.use_local_subchannel_pool", 1))


class Follower:
    """A gateway's end of a link on which it only follows the cache and the load. It reads while `reads` is set."""

    def __init__(self, address: str) -> None:
        self.cache = CacheReader()
        self.loads: list[worker_pb2.WorkerLoad] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self._channel = grpc.aio.insecure_channel(address, options=_NARROW)
        self._call = worker_pb2_grpc.WorkerServiceStub(self._channel).Connect()
        self._arrived = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    @property
    def load(self) -> worker_pb2.WorkerLoad:
        return self.loads[-1]

    async def ask(self) -> None:
        await self._call.write(worker_pb2.ConnectRequest(snapshot_query=worker_pb2.SnapshotQuery()))

    async def until(self, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            if self._reader.done():
                self._reader.result()  # what was wrong with a message
            return bool(self.loads) and condition()

        async with self._arrived:
            await asyncio.wait_for(self._arrived.wait_for(holds), PATIENCE_S)

    async def close(self) -> None:
        self._reader.cancel()
        await self._channel.close()

    async def _read(self) -> None:
        try:
            async for message in self._call:
                async with self._arrived:
                    self.cache.read(message)
                    if message.HasField("load"):
                        self.loads.append(message.load)
                    self._arrived.notify_all()
                await self.reads.wait()
        finally:
            async with self._arrived:
                self._arrived.notify_all()


@asynccontextmanager
async def follower_of(address: str) -> AsyncIterator[Follower]:
    follower = Follower(address)
    try:
        await follower.until(lambda: True)
        yield follower
    finally:
        await follower.close()


async def agree(address: str, *followers: Follower) -> None:
    """See that all believe, behind one event or another, what somebody does who came just now and asked."""
    async with follower_of(address) as fresh:
        await fresh.ask()
        await fresh.until(lambda: fresh.cache.snapshots == 1)
        for follower in followers:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    if not follower.cache.is_lost and follower.cache.seq == fresh.cache.seq:
                        break
                    await asyncio.sleep(0.01)
            assert follower.cache.held == fresh.cache.held


def named(num_slots: int = 512, *, page: int = PAGE, **engine: int) -> WorkerConfig:
    """A worker whose cache tells of pages of `page` tokens."""
    made = config(num_slots, **engine)
    return replace(made, cache=CacheConfig(num_slots=num_slots, storage=StorageConfig(page_size=page)))


def tiered(folder: Path) -> WorkerConfig:
    """A small device, a host, and storage."""
    storage = StorageConfig(url=folder.as_uri(), page_size=PAGE)
    made = config()
    return replace(made, cache=CacheConfig(num_slots=256, host_slots=384, load_back_threshold=1, storage=storage))


async def test_a_gateway_that_knows_a_prompt_knows_the_pages_that_a_worker_tells_of() -> None:
    async with running_worker(named()) as (app, addresses), follower_of(addresses.grpc) as follower:
        gateway = Gateway(addresses.grpc)
        model = await gateway.stub.GetModel(worker_pb2.GetModelRequest())
        await gateway.submit(1, list(range(40)), KEYS[0], max_new_tokens=30)
        await gateway.end(1)
        await idle(app)
        tokens = [*range(40), *gateway.tokens(1)][:-1]  # the last one is never computed
        key = PrefixKey.of(Namespace(KEYS[0]), tokens)
        names = page_hashes(key, model.name_page_size, model.name_seed)
        await follower.until(lambda: follower.cache.held.total() == len(names))
        await gateway.close()

    assert (model.name_page_size, len(names)) == (PAGE, 4)
    assert {page[3] for page in follower.cache.held} == set(names)
    assert {page[:3] for page in follower.cache.held} == {(worker_pb2.CACHE_TIER_DEVICE, KEYS[0], "")}


async def test_a_worker_says_what_it_has_and_that_it_began_anew(tmp_path: Path) -> None:
    described = []
    for _ in range(2):
        async with running_worker(tiered(tmp_path)) as (_, addresses):
            gateway = Gateway(addresses.grpc)
            described.append(await gateway.stub.GetModel(worker_pb2.GetModelRequest()))
            await gateway.close()
    first, second = described
    assert (first.device_slots, first.host_slots) == (256, 384)
    assert (first.store_id, first.name_seed) == (second.store_id, second.name_seed)
    assert first.store_id
    assert str(tmp_path) not in first.store_id
    assert first.incarnation != second.incarnation
    assert not first.simulated


async def test_readers_follow_load_evictions_the_host_storage_and_purges(tmp_path: Path) -> None:
    chance = random.Random(3)
    async with (
        # A model whose tokens depend on what its slots hold, also those that came back from the host.
        running_worker(tiered(tmp_path), SimulatedModel(FAST)) as (app, addresses),
        follower_of(addresses.grpc) as follower,
        follower_of(addresses.grpc) as asking,
    ):
        gateway = Gateway(addresses.grpc)
        for number in range(90):
            tokens = [chance.randrange(3)] * 32 + [chance.randrange(100) for _ in range(chance.randrange(1, 60))]
            await gateway.submit(number, tokens, chance.choice(KEYS), max_new_tokens=chance.randrange(1, 9))
            if number % 6 == 5:
                await gateway.end(number)
            if number % 20 == 19:
                await asking.ask()
            if number % 30 == 29:
                namespace = worker_pb2.CacheNamespace(extra_key=chance.choice(KEYS))
                await gateway.stub.DropCache(worker_pb2.DropCacheRequest(namespaces=[namespace]))
        for number in range(90):
            await gateway.end(number)
        await idle(app)
        await asking.until(lambda: asking.cache.snapshots > 0)
        await agree(addresses.grpc, follower, asking)
        ends = {gateway.of(number)[-1].WhichOneof("end") for number in range(90)}
        await gateway.close()

    assert ends == {"finish_reason"}
    # At the end a purge may have emptied any of them.
    tiers = {worker_pb2.CACHE_TIER_DEVICE, worker_pb2.CACHE_TIER_HOST, worker_pb2.CACHE_TIER_STORAGE}
    assert follower.cache.tiers_told_of == tiers
    assert follower.cache.saved
    assert (follower.cache.gaps, follower.cache.snapshots) == (0, 0)
    assert follower.cache.agreed > 0


async def test_what_is_purged_while_nothing_runs_is_told() -> None:
    async with running_worker(named()) as (app, addresses), follower_of(addresses.grpc) as follower:
        gateway = Gateway(addresses.grpc)
        await gateway.submit(1, list(range(60)))
        await gateway.end(1)
        await idle(app)
        await follower.until(lambda: follower.cache.held.total() == 3)
        namespace = worker_pb2.CacheNamespace(extra_key=KEY_A)
        await gateway.stub.DropCache(worker_pb2.DropCacheRequest(namespaces=[namespace]))
        await follower.until(lambda: not follower.cache.held)
        await gateway.close()


async def test_a_gateway_that_reads_too_slowly_sees_a_gap_and_begins_again() -> None:
    slow_config = replace(
        named(65_536, page=1, max_running=64, max_step_tokens=64, max_chunk_tokens=1), report_interval_s=0.05
    )
    slow_config = replace(slow_config, engine=replace(slow_config.engine, check=False))
    async with (
        running_worker(slow_config) as (app, addresses),
        follower_of(addresses.grpc) as slow,
        follower_of(addresses.grpc) as quick,
    ):
        gateway = Gateway(addresses.grpc)
        slow.reads.clear()
        for number in range(64):
            await gateway.submit(number, [number, *[7] * 300], max_new_tokens=1)
        for number in range(64):
            await gateway.end(number)
        await idle(app)
        await quick.until(lambda: quick.cache.held.total() == 64 * 301)
        slow.reads.set()
        await slow.until(lambda: slow.cache.gaps == 1 and slow.cache.seq == quick.cache.seq)
        await slow.ask()
        await agree(addresses.grpc, slow, quick)
        events = 3 * 64 * 301  # three gateways, each of which was told of each or was not
        samples = await scraped(addresses.metrics, lambda samples: samples[SENT] + samples[DROPPED] == events)
        await gateway.close()

    assert quick.cache.gaps == 0
    assert samples[DROPPED] > 0
    assert samples['radixgate_cache_snapshots_total{worker="worker-0"}'] == 2


async def scraped(url: str, condition: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """Wait until what a worker shows of its cache is so."""

    def scrape() -> dict[str, float]:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            lines = response.read().decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}

    async with asyncio.timeout(PATIENCE_S):
        while True:
            samples = await asyncio.to_thread(scrape)
            if condition(samples):
                return samples
            await asyncio.sleep(0.02)


async def test_a_worker_without_work_is_heard_all_the_same() -> None:
    async with (
        running_worker(replace(config(), report_interval_s=0.02)) as (_, addresses),
        follower_of(addresses.grpc) as follower,
    ):
        await follower.until(lambda: len(follower.loads) >= 5)
        assert follower.load.num_slots == follower.load.free_slots == 512
        assert follower.load.stalled_s == 0.0
        assert not follower.load.draining


async def test_a_message_that_has_become_large_is_sent_all_the_same() -> None:
    unbounded = [("grpc.max_receive_message_length", -1)]  # as gateways connect
    async with (
        running_worker(config()) as (app, addresses),
        grpc.aio.insecure_channel(addresses.grpc, options=unbounded) as channel,
        asyncio.timeout(PATIENCE_S),
    ):
        call = worker_pb2_grpc.WorkerServiceStub(channel).Connect()
        large = worker_pb2.Adapter(name="x" * (MAX_MESSAGE_BYTES + 1))
        app._links.announce(worker_pb2.AdapterSet(adapters=[large]))
        async for message in call:
            if message.adapters.adapters:
                assert len(message.adapters.adapters[0].name) == MAX_MESSAGE_BYTES + 1
                return
        pytest.fail("the stream has ended")


async def test_another_gateways_work_is_told_before_the_next_report_is_due() -> None:
    model = PacedModel()
    patient = replace(config(), report_interval_s=10 * PATIENCE_S)
    async with running_worker(patient, model) as (_, addresses), follower_of(addresses.grpc) as follower:
        gateway = Gateway(addresses.grpc)
        with model.pace:
            await gateway.submit(1, [7] * 300, max_new_tokens=3)
            await follower.until(lambda: follower.load.running_sequences == 1)
            assert follower.load.pending_tokens == 300
            assert (follower.load.own_sequences, follower.load.own_pending_tokens) == (0, 0)
        await gateway.end(1)
        await follower.until(lambda: follower.load.running_sequences == 0)
        await gateway.close()

    assert follower.load.pending_tokens == 0
    assert follower.load.prefill_tokens_per_s > 0
    assert follower.load.step_s > 0


async def test_a_worker_whose_steps_stand_still_says_for_how_long() -> None:
    model = PacedModel()
    async with (
        running_worker(replace(config(), report_interval_s=0.02), model) as (_, addresses),
        follower_of(addresses.grpc) as follower,
    ):
        gateway = Gateway(addresses.grpc)
        with model.pace:
            await gateway.submit(1, [1, 2, 3])
            await follower.until(lambda: follower.load.stalled_s > 0.1)
        await gateway.end(1)
        await follower.until(lambda: follower.load.stalled_s == 0.0)
        await gateway.close()


async def test_gateways_hear_at_once_that_a_worker_drains_and_what_is_there_ends_as_it_should() -> None:
    model = PacedModel()
    patient = replace(config(), report_interval_s=10 * PATIENCE_S)
    app = WorkerApp(patient, model)
    addresses = await app.start()
    async with follower_of(addresses.grpc) as follower:
        gateway = Gateway(addresses.grpc)
        with model.pace:
            await gateway.submit(1, [1, 2, 3], max_new_tokens=3)
            await follower.until(lambda: follower.load.running_sequences == 1)
            stopping = asyncio.create_task(app.stop(drain_timeout_s=PATIENCE_S))
            await follower.until(lambda: follower.load.draining)
            assert not gateway.tokens(1)
        end = await gateway.end(1)
        await stopping
        await gateway.close()

    assert end.WhichOneof("end") == "finish_reason"
    assert len(gateway.adapters) == 1


async def test_a_model_without_a_store_has_no_id_of_one() -> None:
    async with running_worker(config(), FakeModel()) as (_, addresses):
        gateway = Gateway(addresses.grpc)
        model = await gateway.stub.GetModel(worker_pb2.GetModelRequest())
        await gateway.close()
    assert (model.store_id, model.host_slots, model.name_page_size) == ("", 0, 64)
    assert model.name_seed
