"""The engine over a cache of three tiers. Whatever comes late, out of order, torn or never, and whoever leaves when:
answers are those of a request alone on an empty cache, everybody gets one end, and nothing is left behind.
"""

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache.copies.fake_transfer import ManualTransfer
from hicache.host import WriteBack, WriteThrough
from hicache.keys import PrefixKey, Segment
from hicache.pages import group_of
from hicache.radix.shares import Share
from hicache.storage.memory import MemoryStore
from tests.property.engine_answers import MAX_NEW_TOKENS, assert_true_answers, varied
from tests.property.tiers import WatchedStore
from tests.unit.worker.engine.harness import TENANT_A, TENANT_B, make_request
from tests.unit.worker.engine.tiered_rig import NAME_TOKENS, TieredRig
from worker.config import EngineConfig
from worker.engine import Request

MAX_WAITING = 12
MAX_STEPS = 3_000
MOST_RUNS = 8
SHARES = {"a": Share(floor=0.3), "b": Share(floor=0.2, weight=2.0)}
NAMESPACES = {"a": TENANT_A, "b": TENANT_B, "c": replace(TENANT_B, extra_key=b"c" * 16)}
PUBLIC = replace(TENANT_A, extra_key=b"p" * 16)


@dataclass(frozen=True, slots=True)
class Setting:
    """What the engine runs on."""

    seed: int
    page_size: int = 1
    num_pages: int = 24  # of the device, each of 4 tokens or the tree's page
    host_ratio: float = 2.0
    shares: bool = True
    by_hand: bool = False  # copies end in whatever order, each once it was drawn
    faults: bool = True
    overlapped: bool = False  # things also happen while a forward pass is under way


class World:
    """One run: a rig, a random number generator that decides everything, and what was asked for."""

    def __init__(self, setting: Setting, store: MemoryStore | None = None) -> None:
        self.setting = setting
        self.random = chance = random.Random(setting.seed)
        self.page_size = setting.page_size
        self.pages = store or MemoryStore(1 << 16)
        self.store = WatchedStore(self.pages)
        num_pages = setting.num_pages * (4 if setting.page_size == 1 else 1)
        self.rig = TieredRig(
            num_pages * setting.page_size,
            int(num_pages * setting.host_ratio) * setting.page_size,
            setting.page_size,
            config=EngineConfig(
                max_running=chance.randint(2, 8),
                max_step_tokens=chance.randint(8, 64),
                max_chunk_tokens=chance.choice([3, 7, 64]),
                min_shared_tokens=chance.choice([1, 8, 10_000]),
                headroom_tokens=chance.randint(1, 8),
                order=chance.choice(["fcfs", "priority"]),
            ),
            shares=SHARES if setting.shares else None,
            store=self.store,
            write_policy=WriteBack() if chance.random() < 0.5 else WriteThrough(),
            max_fetch_pages=chance.choice([4, 40]),
            seed=None if setting.by_hand else setting.seed,
        )
        self.max_prompt = min(48, self.rig.engine.max_sequence_tokens - MAX_NEW_TOKENS)
        self.requests: dict[int, Request] = {}
        if setting.overlapped:
            self.rig.beside = self.meddle

    # What happens

    def act(self) -> None:
        dice = self.random.random()
        if dice < 0.2 and self.rig.engine.load().waiting < MAX_WAITING:
            self.submit()
        elif dice < 0.22 and self.requests:
            self.cancel_one()
        elif dice < 0.4:
            self.copies_go_on()
        elif dice < 0.5:
            self.store_works()
        elif dice < 0.52 and self.setting.faults:
            self.something_fails()
        elif dice < 0.522:
            self.rig.engine.drop_cache([self.random.choice([*NAMESPACES.values(), PUBLIC])])
        elif dice < 0.53:
            self.rig.engine.flush(self.rig.now)
        else:
            self.step()
        self.rig.engine.check()

    def meddle(self) -> None:
        dice = self.random.random()
        if dice < 0.1 and self.requests:
            self.cancel_one()
        elif dice < 0.3:
            self.copies_go_on()
        elif dice < 0.4:
            self.store_works()
        elif dice < 0.402:
            self.rig.engine.drop_cache([self.random.choice([*NAMESPACES.values(), PUBLIC])])

    def cancel_one(self) -> None:
        self.rig.engine.cancel((0, self.random.randrange(len(self.requests))), self.rig.now)

    def submit(self) -> None:
        number = len(self.requests)
        tenant = self.random.choice("aabc")
        request = make_request(
            number,
            max_new_tokens=self.random.randint(1, MAX_NEW_TOKENS),
            priority=self.random.choice([0, 0, 1]),
            tenant=tenant,
            deadline=self.rig.now + self.random.randint(1, 60) if self.random.random() < 0.2 else None,
        )
        floor = self.random.choice([0, 0, 4, 40]) if self.setting.shares else 0
        request = replace(request, key=self._draw_key(tenant), cache_floor_tokens=floor)
        request = varied(request, self.random.getrandbits(32))
        if len(request.key) + request.params.max_new_tokens <= self.rig.tiers.max_lease_slots_of(tenant):
            self.requests[number] = request
            self.rig.submit(request)

    def step(self) -> None:
        if self.rig.engine.has_work:
            self.rig.step()
        else:
            self.rig.now += 1.0
            self.rig.engine.idle(self.rig.now)

    def copies_go_on(self) -> None:
        transfer = self.rig.transfer
        if not isinstance(transfer, ManualTransfer):
            transfer.advance()
        elif transfer.pending:
            ticket = self.random.choice(transfer.pending)
            end = self.random.random()
            if end < 0.2:
                transfer.begin(ticket)
            elif end < 0.85 or not self.setting.faults:
                transfer.finish(ticket)
            else:
                transfer.fail(ticket, torn=self.random.random() < 0.5)

    def store_works(self) -> None:
        for _ in range(min(len(self.rig.io.tasks), self.random.randrange(5))):
            task = self.random.choice(self.rig.io.tasks)
            if self.random.random() < 0.05 and self.setting.faults:
                self.rig.io.fail("the store had enough", task)
            elif self.random.random() < 0.3:
                self.rig.io.advance(task)
            else:
                self.rig.io.finish(task)

    def something_fails(self) -> None:
        if self.random.random() < 0.5:
            self.rig.executor.break_in.add(self.rig.executor.num_runs + 1)
        else:
            self.store.away = self.random.random() < 0.3

    def run(self) -> None:
        """Let everybody come to an end, while copies and the store go on as they did."""
        for _ in range(MAX_STEPS):
            if not self.rig.engine.has_work:
                return
            self.copies_go_on()
            self.store_works()
            self.step()
        raise AssertionError(f"still at work after {MAX_STEPS} steps: {self.rig.engine.load()}")

    # What holds at the end

    def verify(self) -> None:
        assert_true_answers(self.rig, self.requests)
        self.store.away = False
        self.rig.settle()
        self.rig.assert_nothing_is_left()

    def _draw_key(self, tenant: str) -> PrefixKey:
        """A prompt that starts like others of a few families and goes on by itself; some below a public prefix."""
        family = np.random.default_rng(self.random.randrange(3)).integers(0, 50, self.max_prompt)
        shared = self.random.randrange(self.max_prompt)
        own = [self.random.randrange(50) for _ in range(self.random.randint(1, min(8, self.max_prompt - shared)))]
        tokens = np.array([*family[:shared], *own], dtype=np.int32)
        barrier = NAME_TOKENS * self.page_size
        if self.random.random() < 0.3 and len(tokens) > barrier:
            public = Segment(PUBLIC, np.full(barrier, 7, dtype=np.int32))
            return PrefixKey((public, Segment(NAMESPACES[tenant], tokens[barrier:])))
        return PrefixKey.of(NAMESPACES[tenant], tokens)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    page_size=st.sampled_from([1, 4]),
    pages=st.integers(0, 16),
    host_ratio=st.sampled_from([0.5, 2.0, 8.0]),
    shares=st.booleans(),
    by_hand=st.booleans(),
    faults=st.booleans(),
    overlapped=st.booleans(),
)
def test_any_mix_of_events_gives_true_answers_and_leaves_nothing_behind(
    seed: int,
    page_size: int,
    pages: int,
    host_ratio: float,
    shares: bool,
    by_hand: bool,
    faults: bool,
    overlapped: bool,
) -> None:
    world = World(Setting(seed, page_size, 18 + pages, host_ratio, shares, by_hand, faults, overlapped))
    for _ in range(150):
        world.act()
    world.run()
    world.verify()


@pytest.mark.parametrize(("page_size", "by_hand"), [(1, True), (4, False)])
def test_long_runs_with_a_restart_see_every_tier_at_work(page_size: int, by_hand: bool) -> None:
    """What is rare, hits of storage and faults of either kind, may take more than one run."""
    seen = dict.fromkeys(("device", "host", "storage", "pauses", "copies gone wrong", "failed", "late"), 0)
    for seed in range(page_size, page_size + MOST_RUNS):
        setting = Setting(seed, page_size, host_ratio=1.0, by_hand=by_hand, overlapped=page_size == 1)
        store = MemoryStore(1 << 18)
        for _ in range(2):
            world = World(setting, store)
            for _ in range(1_000):
                world.act()
            world.run()
            world.verify()
            world.rig.save()
        stats = world.rig.tiers.tier_stats()
        for admission in world.rig.observer.admissions:
            for tier in ("device", "host", "storage"):
                seen[tier] += getattr(admission.hit, tier)
        seen["pauses"] += world.rig.observer.num_pauses
        seen["copies gone wrong"] += stats.load_failures + stats.stalls
        seen["failed"] += stats.failed_fetches
        seen["late"] += stats.late_fetches
        if all(seen.values()):
            return
    raise AssertionError(f"not everything was seen in {MOST_RUNS} runs: {seen}")


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    page_size=st.sampled_from([1, 4]),
    by_hand=st.booleans(),
    overlapped=st.booleans(),
    dropped=st.sampled_from(["a", "b", "public"]),
)
def test_nothing_of_a_dropped_namespace_comes_back_from_whatever_was_under_way(
    seed: int, page_size: int, by_hand: bool, overlapped: bool, dropped: str
) -> None:
    """Sequences run and wait, copies, saves and fetches are under way: they end, and the namespace is in no tier."""
    world = World(Setting(seed, page_size, 24, by_hand=by_hand, overlapped=overlapped))
    for _ in range(120):
        world.act()
    namespace = NAMESPACES.get(dropped, PUBLIC)
    world.rig.engine.drop_cache([namespace])
    world.rig.engine.check()
    world.run()
    world.verify()
    assert namespace not in world.rig.tiers.namespaces()
    group = group_of(namespace, b"model")
    assert group not in {name.group for name in world.pages._pages}
