"""However adapters come, go, fail to load and push each other out: whoever has an end by itself got what its very
adapter computes, who hasn't was told why, nobody waits for ever, and nothing is left behind.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_engine import family_prompt
from tests.unit.worker.engine.adapter_rig import AdapterRig, adapted, truth
from worker.batch import SamplingParams
from worker.config import EngineConfig
from worker.engine import FinishReason
from worker.errors import Failure, FailureCode

REVISIONS = "abcdef"
MAX_NEW_TOKENS = 16


class World:
    """One run: a rig, and a random number generator that decides everything."""

    def __init__(self, seed: int, page_size: int, num_places: int, num_slots: int, overlapped: bool) -> None:
        self.rng = np.random.default_rng(seed)
        config = EngineConfig(
            max_running=int(self.rng.integers(1, 9)),
            max_step_tokens=int(self.rng.integers(9, 64)),
            max_chunk_tokens=int(self.rng.choice([3, 16, 64])),
            min_shared_tokens=8,
            headroom_tokens=int(self.rng.integers(1, 20)),
            adapter_patience_s=float(self.rng.integers(1, 12)),
        )
        self.rig = AdapterRig(num_places, config=config, num_slots=num_slots, page_size=page_size)
        self.max_prompt = min(50, self.rig.engine.max_sequence_tokens - MAX_NEW_TOKENS)
        self.known: set[str] = set()  # that requests may name
        self.leaving: set[str] = set()
        self.num_departures = 0
        self.faulty = False
        if overlapped:
            self.rig.beside = self.meddle

    def submit(self) -> None:
        revision = str(self.rng.choice([*REVISIONS, ""]))
        number = len(self.rig.requests)
        deadline = self.rig.now + float(self.rng.integers(1, 60)) if self.rng.random() < 0.1 else None
        tokens = family_prompt(self.rng, self.max_prompt)
        max_new_tokens = int(self.rng.integers(1, MAX_NEW_TOKENS + 1))
        n = int(self.rng.choice([1, 1, 1, 2, 5]))
        params = SamplingParams(max_new_tokens=max_new_tokens, temperature=0.0, ignore_eos=True, n=n)
        self.rig.submit(adapted(number, revision, tokens, params=params, deadline=deadline))

    def cancel(self) -> None:
        if self.rig.requests:
            self.rig.engine.cancel((0, int(self.rng.integers(len(self.rig.requests)))), self.rig.now)

    def add(self) -> None:
        revision = str(self.rng.choice(list(REVISIONS)))
        if revision not in self.leaving:
            self.known.add(revision)
            self.rig.engine.add_adapter(revision)

    def retire(self) -> None:
        if not self.known:
            return
        revision = str(self.rng.choice(sorted(self.known)))
        self.known.remove(revision)
        self.leaving.add(revision)
        self.num_departures += 1
        until = self.rig.now + float(self.rng.integers(0, 80))

        def gone(how: object) -> None:
            self.leaving.remove(revision)
            self.num_departures -= 1
            cached = [each for each in self.rig.cache.namespaces() if each.adapter_revision == revision]
            assert sum(self.rig.cache.holdings(namespace).device for namespace in cached) == 0

        self.rig.engine.retire_adapter(revision, until, gone)

    def upset_loads(self) -> None:
        adapters = self.rig.adapters
        adapters.slow = bool(self.rng.random() < 0.5)
        adapters.broken = {str(self.rng.choice(list(REVISIONS)))} if self.faulty else set()

    def act(self) -> None:
        dice = self.rng.random()
        if dice < 0.22:
            self.submit()
        elif dice < 0.25:
            self.cancel()
        elif dice < 0.31:
            self.add()
        elif dice < 0.33:
            self.retire()
        elif dice < 0.37:
            self.upset_loads()
        elif dice < 0.45:
            self.rig.adapters.finish()
        else:
            self.rig.step()

    def meddle(self) -> None:
        """What may happen while a forward pass is under way."""
        dice = self.rng.random()
        if dice < 0.1:
            self.submit()
        elif dice < 0.13:
            self.cancel()
        elif dice < 0.16:
            self.retire()
        elif dice < 0.26:
            self.rig.adapters.finish()

    def finish(self) -> None:
        """Let everybody come to an end, and say what holds then."""
        rig = self.rig
        if rig.beside is not None:
            rig.beside = lambda: None
        rig.adapters.slow = False
        rig.adapters.finish()
        rig.run()
        assert self.num_departures == 0
        for number, request in rig.requests.items():
            begun = {output.index for output in rig.outputs[0, number]}
            for index in begun:
                self._check_end(number, index)
            assert len(begun) == request.params.n or isinstance(rig.finish(number), Failure)
        rig.assert_nothing_is_held()

    def _check_end(self, number: int, index: int) -> None:
        request = self.rig.requests[number]
        finish, tokens = self.rig.finish(number, index), self.rig.tokens(number, index)
        assert tokens == truth(request, index)[: len(tokens)]
        if finish is FinishReason.LENGTH:
            assert len(tokens) == request.params.max_new_tokens
            return
        assert isinstance(finish, Failure)
        allowed = {FailureCode.CANCELLED, FailureCode.DEADLINE_EXCEEDED}
        if request.adapter:
            allowed.add(FailureCode.NOT_FOUND)
            if self.faulty:
                allowed.add(FailureCode.INTERNAL)
        assert finish.code in allowed


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    page_size=st.sampled_from([1, 16]),
    num_places=st.integers(1, 4),
    pages=st.integers(0, 10),
    faulty=st.booleans(),
    overlapped=st.booleans(),
)
def test_any_mix_of_events_gives_each_sequence_its_own_adapters_answer(
    seed: int, page_size: int, num_places: int, pages: int, faulty: bool, overlapped: bool
) -> None:
    world = World(seed, page_size, num_places, 96 + 16 * pages, overlapped)
    world.faulty = faulty
    for _ in range(150):
        world.act()
    world.finish()


@pytest.mark.parametrize(("page_size", "overlapped"), [(1, True), (16, False)])
def test_adapters_come_and_go_for_a_long_time(page_size: int, overlapped: bool) -> None:
    world = World(page_size + 2, page_size, 2, 256, overlapped)
    world.faulty = True
    for _ in range(2_000):
        world.act()
    world.finish()
    assert world.rig.observer.num_pauses > 0
    assert len(world.rig.adapters.loads) > 20
