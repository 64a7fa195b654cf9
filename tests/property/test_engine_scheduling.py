"""Tenants, weights and priorities against each other, in every order of the waiting line, whatever happens meanwhile.

Nothing is lost or counted twice, invariants hold after each operation, answers are true, and everybody gets there.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.engine_answers import assert_true_answers
from tests.property.test_engine import family_prompt
from tests.unit.worker.engine.harness import Rig, make_request
from tests.unit.worker.engine.waiting_sequences import namespace_of
from worker.config import EngineConfig
from worker.engine import Request

ORDERS = ["fair", "fcfs", "lpm", "dfs_weight", "priority"]
MAX_NEW_TOKENS = 24


class Crowd:
    """Tenants that send, cancel and let time pass, as a random number generator decides."""

    def __init__(self, seed: int, page_size: int, order: str, num_slots: int = 256) -> None:
        self.rng = np.random.default_rng(seed)
        config = EngineConfig(
            max_running=int(self.rng.integers(2, 7)),
            max_step_tokens=int(self.rng.integers(8, 64)),
            max_chunk_tokens=int(self.rng.choice([1, 5, 32])),
            contested_prompt_tokens=int(self.rng.integers(1, 32)),
            min_shared_tokens=int(self.rng.choice([4, 10_000])),
            headroom_tokens=int(self.rng.integers(1, 6)),
            fair_quantum_tokens=int(self.rng.integers(1, 200)),
            max_wait_s=float(self.rng.integers(1, 50)),
            order=order,  # type: ignore[arg-type]
        )
        self.rig = Rig(num_slots, page_size, config=config)
        self.requests: dict[int, Request] = {}
        self.num_operations = 0

    def submit(self) -> None:
        number = len(self.requests)
        tenant = str(self.rng.choice(["a", "b", "b", "b", "c"]))
        request = make_request(
            number,
            family_prompt(self.rng, 60),
            max_new_tokens=int(self.rng.integers(1, MAX_NEW_TOKENS + 1)),
            namespace=namespace_of(tenant),
            priority=int(self.rng.integers(0, 2)),
            deadline=self.rig.now + float(self.rng.integers(1, 80)) if self.rng.random() < 0.15 else None,
            tenant=tenant,
        )
        self.requests[number] = replace(request, weight={"a": 2.0, "b": 1.0, "c": 0.5}[tenant])
        self.rig.submit(self.requests[number])

    def pause_one(self) -> None:
        """Pause somebody who runs, as a scheduler might at any moment; but for the first, which always goes on."""
        scheduler = self.rig.engine._scheduler
        if len(scheduler._running) > 1:
            victim = scheduler._running[int(self.rng.integers(1, len(scheduler._running)))]
            victim.num_pauses = min(victim.num_pauses, 3)
            scheduler._pause(victim, _NoDraft(), self.rig.now)  # type: ignore[arg-type]

    def act(self) -> None:
        self.num_operations += 1
        dice = self.rng.random()
        if dice < 0.22:
            self.submit()
        elif dice < 0.28 and self.requests:
            self.rig.engine.cancel((0, int(self.rng.integers(len(self.requests)))), self.rig.now)
        elif dice < 0.34:
            self.pause_one()
        elif dice < 0.345:
            self.rig.executor.break_in.add(self.rig.executor.num_runs + 1)
        else:
            self.rig.step(check=False)
        self.check()

    def check(self) -> None:
        self.rig.engine.check()
        stats = self.rig.cache.stats()
        assert stats.free_slots + stats.cached_slots + stats.private_slots == stats.num_slots
        assert stats.open_leases == self.rig.engine.load().running

    def finish(self) -> None:
        self.rig.run(check=False)
        assert_true_answers(self.rig, self.requests)
        self.rig.assert_nothing_is_held()
        line = self.rig.engine._scheduler._line
        assert len(line) == 0
        assert not list(line.members())


class _NoDraft:
    """The step that a pause between two steps belongs to."""

    def __init__(self) -> None:
        self.paused: list[object] = []

    def drop(self, sequence: object) -> None:
        return


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("page_size", [1, 16])
def test_thousands_of_operations_leave_every_invariant_whole(order: str, page_size: int) -> None:
    crowd = Crowd(seed=3, page_size=page_size, order=order)
    for _ in range(1_050):
        crowd.act()
    crowd.finish()
    assert crowd.rig.observer.num_pauses > 0
    assert crowd.rig.observer.num_evicted > 0


@settings(max_examples=12)
@given(seed=st.integers(0, 2**32 - 1), page_size=st.sampled_from([1, 16]), order=st.sampled_from(ORDERS))
def test_any_mix_of_tenants_and_events_gives_true_answers_in_any_order(seed: int, page_size: int, order: str) -> None:
    crowd = Crowd(seed, page_size, order)
    for _ in range(150):
        crowd.act()
    crowd.finish()
