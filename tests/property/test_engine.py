"""Whatever is submitted, cancelled, out of time or broken, in whatever order and however few slots there are: answers
are those of a request alone on an empty cache, counts add up, and nothing is left behind.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.engine_answers import MAX_NEW_TOKENS, assert_true_answers, varied
from tests.unit.worker.engine.harness import TENANT_A, TENANT_B, Rig, make_request
from worker.config import EngineConfig
from worker.engine import Request


def family_prompt(rng: np.random.Generator, max_length: int) -> tuple[int, ...]:
    """Return a prompt that starts like others of a few families and goes on by itself."""
    family = np.random.default_rng(int(rng.integers(3))).integers(0, 50, max_length)
    shared = int(rng.integers(0, max_length))
    own = rng.integers(0, 50, int(rng.integers(1, max_length - shared + 1)))
    return tuple(int(token) for token in (*family[:shared], *own))


class World:
    """One run: a rig, a random number generator that decides everything, and what was asked for."""

    def __init__(
        self, seed: int, page_size: int, num_pages: int, chunk: int, min_shared: int, overlapped: bool = False
    ) -> None:
        self.rng = np.random.default_rng(seed)
        config = EngineConfig(
            max_running=int(self.rng.integers(1, 9)),
            max_step_tokens=int(self.rng.integers(9, 64)),
            max_chunk_tokens=chunk,
            min_shared_tokens=min_shared,
            headroom_tokens=int(self.rng.integers(1, 20)),
            order=str(self.rng.choice(["fair", "fcfs", "lpm", "dfs_weight", "priority"])),  # type: ignore[arg-type]
        )
        self.rig = Rig(num_slots=num_pages * page_size, page_size=page_size, config=config)
        self.max_prompt = min(60, self.rig.engine.max_sequence_tokens - MAX_NEW_TOKENS)
        self.requests: dict[int, Request] = {}
        if overlapped:
            self.rig.beside = self.meddle

    def submit(self) -> None:
        number = len(self.requests)
        request = make_request(
            number,
            family_prompt(self.rng, self.max_prompt),
            max_new_tokens=int(self.rng.integers(1, MAX_NEW_TOKENS + 1)),
            namespace=TENANT_A if self.rng.random() < 0.7 else TENANT_B,
            priority=int(self.rng.integers(0, 3)),
            deadline=self.rig.now + float(self.rng.integers(1, 60)) if self.rng.random() < 0.2 else None,
        )
        request = varied(request, int(self.rng.integers(1 << 32)))
        self.requests[number] = request
        self.rig.submit(request)

    def act(self, faults: bool) -> None:
        dice = self.rng.random()
        if dice < 0.25:
            self.submit()
        elif dice < 0.29 and self.requests:
            self.cancel_one()
        elif dice < 0.31 and faults:
            self.rig.executor.break_in.add(self.rig.executor.num_runs + 1)
        else:
            self.rig.step()

    def cancel_one(self) -> None:
        self.rig.engine.cancel((0, int(self.rng.integers(len(self.requests)))), self.rig.now)

    def meddle(self) -> None:
        """What may happen while a forward pass is under way."""
        dice = self.rng.random()
        if dice < 0.1:
            self.submit()
        elif dice < 0.13 and self.requests:
            self.cancel_one()

    def finish(self) -> None:
        """Let everybody come to an end, and say what holds then."""
        if self.rig.beside is not None:
            self.rig.beside = lambda: None
        self.rig.run()
        assert_true_answers(self.rig, self.requests)
        self.rig.assert_nothing_is_held()


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    page_size=st.sampled_from([1, 16]),
    pages=st.integers(0, 12),
    chunk=st.sampled_from([1, 3, 7, 64]),
    min_shared=st.sampled_from([1, 8, 10_000]),
    faults=st.booleans(),
    overlapped=st.booleans(),
)
def test_any_mix_of_events_gives_true_answers_and_leaves_nothing_behind(
    seed: int, page_size: int, pages: int, chunk: int, min_shared: int, faults: bool, overlapped: bool
) -> None:
    num_pages = 3 + pages if page_size == 16 else 40 + 20 * pages
    world = World(seed, page_size, num_pages, chunk, min_shared, overlapped)
    for _ in range(120):
        world.act(faults)
    world.finish()


@pytest.mark.parametrize(("page_size", "overlapped"), [(1, True), (16, False)])
def test_thousands_of_operations_with_sums_checked_after_each_step(page_size: int, overlapped: bool) -> None:
    world = World(page_size + 5, page_size, 192 // page_size, chunk=16, min_shared=8, overlapped=overlapped)
    for _ in range(2_500):
        world.act(faults=True)
    world.finish()
    assert world.rig.observer.num_pauses > 0
    assert world.rig.observer.num_evicted > 0


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), page_size=st.sampled_from([1, 16]), overlapped=st.booleans())
def test_a_cancelled_sequence_holds_nothing_two_steps_later(seed: int, page_size: int, overlapped: bool) -> None:
    world = World(seed, page_size, 320 // page_size, chunk=7, min_shared=8)
    for _ in range(6):
        world.submit()
    for _ in range(int(world.rng.integers(0, 20))):
        world.rig.step()

    def cancel_all() -> None:
        for number in world.requests:
            world.rig.engine.cancel((0, number), world.rig.now)

    if overlapped:
        world.rig.beside = cancel_all
    else:
        cancel_all()
    world.rig.step()
    world.rig.step()
    world.rig.assert_nothing_is_held()
    assert not world.rig.engine.has_work
