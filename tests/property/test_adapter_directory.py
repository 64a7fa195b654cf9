"""Whatever is loaded and unloaded at a time, under whatever names and for whomever: what a tenant has under one name
are revisions of one adapter, the engine knows exactly what entries name, and weights are counted until they are gone.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import combinations
from pathlib import Path

import pytest
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
        self.max_adapters = max_adapters
        self.directory = AdapterDirectory(
            Reader(), self.engine, LoraConfig(max_adapters=max_adapters, max_host_bytes=3 * ADAPTER_BYTES)
        )
        self.tasks: list[asyncio.Task[object]] = []

    async def act(self) -> None:
        name, tenants, revision = self.dice.choice(NAMES), self.dice.choice(TENANTS), self.dice.choice(REVISIONS)
        dice = self.dice.random()
        if dice < 0.4:
            beside = self.dice.random() < 0.5
            self.tasks.append(asyncio.create_task(self.directory.load(name, revision, tenants, beside=beside)))
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
        assert len(entries) <= self.max_adapters
        for one, other in combinations(entries, 2):
            if one.name == other.name and one.tenants == other.tenants:
                assert one.revision != other.revision
            elif one.name == other.name:
                assert not any(one.is_for(tenant) and other.is_for(tenant) for tenant in ("acme", "globex", "x"))
        for entry in entries:
            for tenant in entry.tenants or {"x"}:
                assert self.directory.has(entry.name, entry.revision, tenant)

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
        for entry in {(entry.name, entry.tenants): entry for entry in self.directory.entries()}.values():
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


def run_alone(steps: Callable[[AdapterDirectory, Engine], Awaitable[None]]) -> None:
    """Run a test with a directory whose engine lets adapters go at once."""

    async def run() -> None:
        engine = Engine()
        directory = AdapterDirectory(Reader(), engine, LoraConfig(max_adapters=3))
        let_go = asyncio.create_task(letting_go(engine))
        try:
            await steps(directory, engine)
        finally:
            let_go.cancel()
            directory.close()

    asyncio.run(run())


async def letting_go(engine: Engine) -> None:
    while True:
        for revision in list(engine.retiring):
            engine.let_go(revision)
        await asyncio.sleep(0)


def revisions(directory: AdapterDirectory) -> list[str]:
    return [entry.revision for entry in directory.entries()]


def test_revisions_stand_side_by_side_and_requests_choose() -> None:
    async def steps(directory: AdapterDirectory, engine: Engine) -> None:
        await directory.load("poet", "r1", ())
        await directory.load("poet", "r2", (), beside=True)
        assert revisions(directory) == ["r1", "r2"]
        assert directory.has("poet", "r1", "acme")
        assert directory.has("poet", "r2", "acme")
        first = directory.entries()[0]
        assert await directory.load("poet", "r1", (), beside=True) is first
        assert revisions(directory) == ["r1", "r2"]
        with pytest.raises(UnknownAdapter, match="r1, r2, not r3"):
            await directory.unload("poet", "r3", (), 1.0)
        await directory.unload("poet", "r1", (), 1.0)
        assert revisions(directory) == ["r2"]
        assert engine.known == {"r2"}

    run_alone(steps)


def test_without_beside_the_others_of_the_name_go() -> None:
    async def steps(directory: AdapterDirectory, engine: Engine) -> None:
        for revision in ("r1", "r2", "r3"):
            await directory.load("poet", revision, ("acme",), beside=True)
        with pytest.raises(TooManyAdapters):
            await directory.load("poet", "r4", ("acme",), beside=True)
        await directory.load("poet", "r2", ("acme",))
        assert revisions(directory) == ["r2"]
        await directory.load("poet", "r4", ("acme",))
        assert revisions(directory) == ["r4"]
        assert engine.known == {"r4"}

    run_alone(steps)


def test_an_unload_without_a_revision_takes_all() -> None:
    async def steps(directory: AdapterDirectory, engine: Engine) -> None:
        await directory.load("poet", "r1", ())
        await directory.load("poet", "r2", (), beside=True)
        await directory.load("bard", "r2", ())
        await directory.unload("poet", "", (), 1.0)
        assert [(entry.name, entry.revision) for entry in directory.entries()] == [("bard", "r2")]
        assert engine.known == {"r2"}

    run_alone(steps)


def test_beside_is_for_the_same_tenants_only() -> None:
    async def steps(directory: AdapterDirectory, engine: Engine) -> None:
        await directory.load("poet", "r1", ())
        with pytest.raises(AdapterNameTaken):
            await directory.load("poet", "r2", ("acme",), beside=True)
        assert engine.known == {"r1"}

    run_alone(steps)
