"""Whatever happens to a completion, its phases follow each other without gaps from its beginning to its end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property import test_engine, test_engine_tiers
from tests.property.engine_timelines import assert_true_timelines
from worker.engine import Phase


class TimedWorld(test_engine.World):
    """Forward passes take time, and so does everything in between; remembers when what was submitted."""

    def __init__(self, seed: int, num_pages: int, overlapped: bool) -> None:
        self.submitted: dict[int, float] = {}
        super().__init__(seed, 1, num_pages, chunk=7, min_shared=8, overlapped=overlapped)
        self.rig.executor.before_run = self.passes

    def passes(self) -> None:
        self.rig.now += float(self.rng.random())

    def submit(self) -> None:
        self.rig.now += float(self.rng.random()) / 8
        self.submitted[len(self.requests)] = self.rig.now
        super().submit()


class TimedTiers(test_engine_tiers.World):
    def __init__(self, setting: test_engine_tiers.Setting) -> None:
        self.submitted: dict[int, float] = {}
        super().__init__(setting)

    def submit(self) -> None:
        self.submitted[len(self.requests)] = self.rig.now
        super().submit()


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), pages=st.integers(40, 300), overlapped=st.booleans(), faults=st.booleans())
def test_phases_add_up_through_pauses_cancels_deadlines_and_faults(
    seed: int, pages: int, overlapped: bool, faults: bool
) -> None:
    world = TimedWorld(seed, pages, overlapped)
    for _ in range(100):
        world.act(faults)
    world.finish()
    assert_true_timelines(world.rig, world.requests, world.submitted)


def test_so_they_do_over_hundreds_of_operations_of_which_some_pause_others() -> None:
    world = TimedWorld(7, 120, overlapped=True)
    for _ in range(500):
        world.act(faults=True)
    world.finish()
    timelines = assert_true_timelines(world.rig, world.requests, world.submitted)
    told = {interval.phase for timeline in timelines for interval in timeline.intervals}
    assert told == set(Phase) - {Phase.LOAD}
    assert any(timeline.num_tokens == 0 for timeline in timelines)


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1), by_hand=st.booleans(), overlapped=st.booleans())
def test_so_they_do_over_three_tiers(seed: int, by_hand: bool, overlapped: bool) -> None:
    world = TimedTiers(test_engine_tiers.Setting(seed, by_hand=by_hand, overlapped=overlapped))
    for _ in range(120):
        world.act()
    world.rig.beside = None
    world.run()
    assert_true_timelines(world.rig, world.requests, world.submitted)


def test_loads_from_the_host_and_prefetches_from_storage_are_told() -> None:
    world = TimedTiers(test_engine_tiers.Setting(3, faults=False))
    for _ in range(300):
        world.act()
    world.run()
    timelines = assert_true_timelines(world.rig, world.requests, world.submitted)
    assert sum(timeline.seconds.get(Phase.LOAD, 0.0) for timeline in timelines) > 0
    assert any(timeline.prefetched_at is not None for timeline in timelines)
