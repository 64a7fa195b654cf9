"""Whatever is loaded and unloaded at a time, under whatever names and for whomever: no tenant has two adapters of one
name, the engine knows exactly what entries name, and weights are counted until they are gone.
"""

import asyncio
import random
from itertools import combinations
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.config import LoraConfig
from worker.engine.departures import Gone, OnGone
from worker.lora.weights import AdapterWeights, LowRank
from worker.rpc.adapters import AdapterDirectory, AdapterNameTaken, TooManyAdapters, UnknownAdapter

REVISIONS = ("r1", "r2", "r3", "r4")
NAMES = ("poet", "bard")
TENANTS: tuple[tuple[str, ...], ...] = ((), ("acme",), ("globex",), ("acme", "globex"))
ADAPTER_BYTES = 8 * 4


class Reader:
    """A folder's name is the revision of what is in it."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def read(self, folder: Path) -> AdapterWeights:
        return AdapterWeights(folder.name, {"q_proj": LowRank(torch.zeros(1, 4), torch.zeros(4, 1), 1.0)})

    def add(self, weights: AdapterWeights) -> None:
        self.kept.append(weights.revision)


class Engine:
    """Adapters are gone when a test says so."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.retiring: dict[str, OnGone] = {}

    def add_adapter(self, revision: str) -> None:
        assert revision not in self.known
        assert revision not in self.retiring
        self.known.add(revision)

    def retire_adapter(self, revision: str, grace_s: float, on_gone: OnGone) -> bool:
        self.known.remove(revision)
        self.retiring[revision] = on_gone
        return True

    def let_go(self, revision: str) -> None:
        self.retiring.pop(revision)(Gone(0, 0))


class World:
    def __init__(self, seed: int, max_adapters: int) -> None:
        self.dice = random.Random(seed)
        self.engine = Engine()
        self.directory = AdapterDirectory(
            Reader(), self.engine, LoraConfig(max_adapters=max_adapters, max_host_bytes=3 * ADAPTER_BYTES)
        )
        self.tasks: list[asyncio.Task[object]] = []

    async def act(self) -> None:
        name, tenants, revision = self.dice.choice(NAMES), self.dice.choice(TENANTS), self.dice.choice(REVISIONS)
        dice = self.dice.random()
        if dice < 0.4:
            self.tasks.append(asyncio.create_task(self.directory.load(name, revision, tenants)))
        elif dice < 0.6:
            named = self.dice.choice(["", revision])
            self.tasks.append(asyncio.create_task(self.directory.unload(name, named, tenants, 1.0)))
        elif dice < 0.7 and self.tasks:
            self.dice.choice(self.tasks).cancel()
        elif dice < 0.85 and self.engine.retiring:
            self.engine.let_go(self.dice.choice(sorted(self.engine.retiring)))
            await asyncio.sleep(0)  # the directory hears of it through the loop
        else:
            await asyncio.sleep(self.dice.choice([0, 0, 0.001]))

    def check(self) -> None:
        entries = self.directory.entries()
        assert {entry.revision for entry in entries} == self.engine.known
        assert self.directory.host_bytes == ADAPTER_BYTES * len(self.engine.known | set(self.engine.retiring))
        for one, other in combinations(entries, 2):
            if one.name == other.name:
                assert not any(one.is_for(tenant) and other.is_for(tenant) for tenant in ("acme", "globex", "x"))

    async def finish(self) -> None:
        async with asyncio.timeout(20):
            while any(not task.done() for task in self.tasks) or self.engine.retiring:
                for revision in list(self.engine.retiring):
                    self.engine.let_go(revision)
                await asyncio.sleep(0)
        for outcome in await asyncio.gather(*self.tasks, return_exceptions=True):
            refused = (AdapterNameTaken, TooManyAdapters, UnknownAdapter, asyncio.CancelledError)
            assert not isinstance(outcome, BaseException) or isinstance(outcome, refused), outcome
        self.check()
        for entry in self.directory.entries():
            unloading = asyncio.create_task(self.directory.unload(entry.name, "", entry.tenants, 1.0))
            while not unloading.done():
                for revision in list(self.engine.retiring):
                    self.engine.let_go(revision)
                await asyncio.sleep(0)
        self.check()
        assert self.directory.host_bytes == 0
        self.directory.close()


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), max_adapters=st.integers(1, 6))
def test_any_mix_of_loads_and_unloads_keeps_the_directory_consistent(seed: int, max_adapters: int) -> None:
    async def run() -> None:
        world = World(seed, max_adapters)
        for _ in range(80):
            await world.act()
            world.check()
        await world.finish()

    asyncio.run(run())
