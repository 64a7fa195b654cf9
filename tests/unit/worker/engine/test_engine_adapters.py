"""Adapters have few places: who gets one, who waits how long, who is disturbed."""

from collections.abc import Iterator

import pytest

from tests.unit.worker.engine.adapter_rig import PATIENCE, AdapterRig, adapted
from tests.unit.worker.engine.harness import prompt
from worker.config import EngineConfig
from worker.engine import FinishReason
from worker.engine.adapters import AdapterPlaces
from worker.engine.fake import FakeAdapters, FakeTicket
from worker.engine.sequence import Sequence
from worker.errors import FailureCode


def test_base_and_adapters_compute_side_by_side_each_with_its_own_weights() -> None:
    rig = AdapterRig(2, "ab")
    rig.submit(*(adapted(number, revision, prompt(20)) for number, revision in enumerate(["", "a", "b", "a", ""])))
    rig.run()
    rig.assert_true()
    assert any(batch.num_sequences == 5 for batch in rig.executor.batches)
    rig.assert_nothing_is_held()


def test_the_same_prompt_is_found_again_under_the_same_adapter_only() -> None:
    rig = AdapterRig(2, "ab")
    for number, revision in enumerate(["a", "b", "", "a", "b", ""]):
        rig.run_with(number, revision, tokens=prompt(30))
    assert [rig.admission(number).hit.total for number in range(6)] == [0, 0, 0, 29, 29, 29]


def test_an_adapter_that_nobody_has_added_is_not_found() -> None:
    rig = AdapterRig(1)
    rig.run_with(0, "a")
    assert (rig.failure(0).code, rig.failure(0).field) == (FailureCode.NOT_FOUND, "adapter")
    assert rig.adapters.loads == []


def test_adding_an_adapter_twice_changes_nothing() -> None:
    rig = AdapterRig(1, "a")
    rig.run_with(0, "a")
    rig.engine.add_adapter("a")
    rig.run_with(1, "a")
    rig.assert_true()
    assert len(rig.adapters.loads) == 1


def test_an_adapter_stays_where_it_is_while_there_are_places_for_all() -> None:
    rig = AdapterRig(2, "ab")
    for number, revision in enumerate("abababab"):
        rig.run_with(number, revision)
    assert len(rig.adapters.loads) == 2


def test_the_least_recently_used_adapter_goes() -> None:
    rig = AdapterRig(2, "abc")
    for number, revision in enumerate("abac"):
        rig.run_with(number, revision)
    assert rig.is_resident("a")
    assert rig.is_resident("c")
    assert not rig.is_resident("b")


def test_an_adapter_that_somebody_waits_for_stays_rather_than_one_used_more_recently() -> None:
    rig = AdapterRig(2, "abc", config=EngineConfig(max_running=1, max_step_tokens=64, adapter_patience_s=1000.0))
    rig.run_with(0, "a")
    rig.run_with(1, "b")
    rig.submit(adapted(2, "", max_new_tokens=30), adapted(3, "c", priority=0), adapted(4, "a"))
    rig.run()
    assert [revision for revision, _ in rig.adapters.loads] == ["a", "b", "c"]
    assert rig.is_resident("a")
    assert not rig.is_resident("b")


def test_a_place_in_use_is_not_given_away() -> None:
    rig = AdapterRig(1, "ab", config=EngineConfig(adapter_patience_s=1000.0))
    rig.submit(adapted(0, "a", max_new_tokens=40), adapted(1, "b"))
    rig.run()
    rig.assert_true()
    assert rig.is_undisturbed(0)
    assert rig.token_times[0, 1][0] > rig.token_times[0, 0][-1]
    assert rig.observer.num_pauses == 0


def test_nobody_else_is_held_up_while_an_adapter_is_on_its_way() -> None:
    rig = AdapterRig(2, "ab")
    rig.run_with(0, "a")
    rig.adapters.slow = True
    rig.submit(adapted(1, "b"), adapted(2, "a", max_new_tokens=20), adapted(3, "", max_new_tokens=20))
    for _ in range(25):
        rig.step()
    assert rig.tokens(1) == []
    assert rig.is_undisturbed(2)
    assert rig.is_undisturbed(3)
    assert rig.finish(2) is rig.finish(3) is FinishReason.LENGTH
    rig.adapters.finish()
    rig.run()
    rig.assert_true()
    assert len(rig.adapters.loads) == 2


def test_sequences_of_an_adapter_on_its_way_share_one_load() -> None:
    rig = AdapterRig(2, "a")
    rig.adapters.slow = True
    rig.submit(*(adapted(number, "a", prompt(10, number)) for number in range(5)))
    for _ in range(3):
        rig.step()
    rig.adapters.finish()
    rig.run()
    rig.assert_true()
    assert len(rig.adapters.loads) == 1


def stream_of(rig: AdapterRig, revisions: str, first: int = 1000) -> Iterator[int]:
    """Keep two sequences of each adapter going: with each step submits what is missing. Yields the step's number."""
    number = first
    busy: dict[str, list[int]] = {revision: [] for revision in revisions}
    for step in range(2000):
        for revision, numbers in busy.items():
            numbers[:] = [each for each in numbers if rig.finish(each) is None]
            while len(numbers) < 2:
                rig.submit(adapted(number, revision, prompt(5, number), max_new_tokens=12))
                numbers.append(number)
                number += 1
        rig.step()
        yield step


@pytest.mark.parametrize("num_places", [1, 2, 3])
def test_an_adapter_gets_a_place_in_bounded_time_however_busy_the_others_are(num_places: int) -> None:
    others = "abc"[:num_places]
    rig = AdapterRig(num_places, others + "x")
    for step in stream_of(rig, others):
        if step == 20:
            rig.submit(adapted(0, "x"))
        if rig.tokens(0):
            assert step <= 20 + PATIENCE + 2
            return
    raise AssertionError("it never started")


def test_more_busy_adapters_than_places_all_get_their_turn() -> None:
    rig = AdapterRig(2, "abcde")
    for step in stream_of(rig, "abcde"):
        if step == 150:
            break
    tokens = dict.fromkeys("abcde", 0)
    for number, request in rig.requests.items():
        tokens[request.adapter_revision] += len(rig.tokens(number))
    assert min(tokens.values()) > 0.5 * max(tokens.values())


def test_who_runs_longer_than_others_wait_patiently_is_paused_and_goes_on_with_its_kv() -> None:
    rig = AdapterRig(1, "ab")
    rig.submit(adapted(0, "a", prompt(50), max_new_tokens=60))
    for _ in range(10):
        rig.step()
    rig.submit(adapted(1, "b", max_new_tokens=30))
    rig.run()
    rig.assert_true()
    assert rig.observer.num_pauses > 0
    computed = sum(num_tokens for num_tokens, _, _ in rig.observer.steps)
    # With each pause the last token is computed once more at most.
    assert computed <= 50 + 60 + 3 + 30 + rig.observer.num_pauses
    rig.assert_nothing_is_held()


def test_who_ends_within_the_patience_of_others_is_not_paused() -> None:
    rig = AdapterRig(1, "ab")
    rig.submit(adapted(0, "a", max_new_tokens=4))
    rig.submit(adapted(1, "b", max_new_tokens=4))
    rig.run()
    rig.assert_true()
    assert rig.observer.num_pauses == 0


def test_while_a_place_closes_nobody_starts_on_it() -> None:
    rig = AdapterRig(1, "ab", config=EngineConfig(adapter_patience_s=1000.0))
    rig.submit(adapted(0, "a", max_new_tokens=20))
    rig.step()
    rig.submit(adapted(1, "b"))
    rig.step()
    rig.submit(adapted(2, "a", prompt(9)))
    rig.run()
    assert rig.token_times[0, 2][0] > rig.token_times[0, 1][-1] > rig.token_times[0, 0][-1]


def test_a_place_opens_again_when_nobody_waits_for_it_any_more() -> None:
    rig = AdapterRig(1, "ab", config=EngineConfig(adapter_patience_s=1000.0))
    rig.submit(adapted(0, "a", max_new_tokens=50))
    rig.step()
    rig.submit(adapted(1, "b"))
    rig.step()
    rig.engine.cancel((0, 1), rig.now)
    rig.submit(adapted(2, "a", prompt(9)))
    rig.run()
    rig.assert_true(0, 2)
    assert rig.token_times[0, 2][0] < rig.token_times[0, 0][-1]
    assert len(rig.adapters.loads) == 1


def test_an_adapter_that_has_come_is_kept_for_those_who_waited_for_it() -> None:
    # Whoever asks for "a" goes before the one that waits for "b", at any time.
    rig = AdapterRig(1, "ab", config=EngineConfig(order="priority", adapter_patience_s=PATIENCE))
    rig.adapters.slow = True
    rig.submit(adapted(0, "b"))
    rig.step()
    rig.submit(adapted(1, "a", priority=1))
    rig.step()
    rig.adapters.slow = False
    rig.adapters.finish()
    rig.run()
    rig.assert_true()
    assert rig.token_times[0, 0][0] < rig.token_times[0, 1][0]
    assert [revision for revision, _ in rig.adapters.loads] == ["b", "a"]


def test_who_cannot_start_keeps_its_place_from_others_only_for_so_long() -> None:
    rig = AdapterRig(1, "ab", num_slots=100, config=EngineConfig(order="priority", adapter_patience_s=PATIENCE))
    rig.submit(adapted(9, "", prompt(40), max_new_tokens=50, priority=1))
    rig.step()
    rig.submit(adapted(0, "b", prompt(60, 1)))  # has its adapter, and lacks slots until the one before has ended
    rig.step()
    rig.submit(adapted(1, "a", priority=1))
    for _ in range(int(PATIENCE) + 2):
        rig.step()
    assert len(rig.tokens(9)) < 50
    assert rig.tokens(1) != []
    rig.run()
    rig.assert_true()


@pytest.mark.parametrize("slow", [True, False])
def test_an_adapter_that_cannot_be_brought_here_ends_only_its_own_sequences(slow: bool) -> None:
    rig = AdapterRig(2, "ab")
    rig.adapters.broken = {"a"}
    rig.adapters.slow = slow
    rig.submit(adapted(0, "a"), adapted(1, "a", prompt(9)), adapted(2, "b"), adapted(3, "", max_new_tokens=10))
    rig.step()
    rig.adapters.finish()
    rig.run()
    assert rig.failure(0).code is rig.failure(1).code is FailureCode.INTERNAL
    rig.assert_true(2, 3)
    assert rig.is_undisturbed(3)
    rig.assert_nothing_is_held()


class EndsWhenLookedAt(FakeAdapters):
    """Its loads fail, each when somebody looks at it for the nth time."""

    def __init__(self, looks: int) -> None:
        super().__init__(1)
        self._looks = looks

    def load(self, revision: str, place: int) -> FakeTicket:
        self.loads.append((revision, place))
        return _FailsWhenLookedAt(self._looks)


class _FailsWhenLookedAt(FakeTicket):
    def __init__(self, looks: int) -> None:
        self._looks_left = looks
        self.failed = True

    @property
    def done(self) -> bool:  # type: ignore[override]
        self._looks_left -= 1
        return self._looks_left < 0


@pytest.mark.parametrize("looks", range(6))
def test_a_load_may_fail_at_any_moment(looks: int) -> None:
    rig = AdapterRig(1, "a", adapters=EndsWhenLookedAt(looks))
    rig.submit(adapted(0, "a"), adapted(1, "a", prompt(7)), adapted(2, "", max_new_tokens=9))
    rig.run()
    assert rig.failure(0).code is rig.failure(1).code is FailureCode.INTERNAL
    rig.assert_true(2)


def test_after_a_failed_load_the_next_request_tries_again() -> None:
    rig = AdapterRig(1, "a")
    rig.adapters.broken = {"a"}
    rig.run_with(0, "a")
    rig.adapters.broken = set()
    rig.run_with(1, "a")
    assert rig.failure(0).code is FailureCode.INTERNAL
    rig.assert_true(1)


def test_a_failed_load_leaves_its_place_to_others() -> None:
    rig = AdapterRig(1, "ab")
    rig.adapters.broken = {"a"}
    rig.submit(adapted(0, "a"), adapted(1, "b"))
    rig.run()
    rig.assert_true(1)


def test_a_deadline_passes_while_an_adapter_is_on_its_way() -> None:
    rig = AdapterRig(1, "a")
    rig.adapters.slow = True
    rig.submit(adapted(0, "a", deadline=3.0), adapted(1, "a", prompt(7)))
    for _ in range(5):
        rig.step()
    assert rig.failure(0).code is FailureCode.DEADLINE_EXCEEDED
    rig.adapters.finish()
    rig.run()
    rig.assert_true(1)
    rig.assert_nothing_is_held()


def test_the_states_say_what_lies_where_and_who_uses_it() -> None:
    rig = AdapterRig(1, "ab", config=EngineConfig(adapter_patience_s=1000.0))
    rig.submit(adapted(0, "a", max_new_tokens=9), adapted(1, "a", prompt(5), max_new_tokens=9), adapted(2, "b"))
    rig.step()
    states = {state.revision: (state.resident, state.users) for state in rig.engine.adapters()}
    assert states == {"a": (True, 2), "b": (False, 1)}


def test_turns_grow_until_everybody_gets_on_where_no_kv_survives_until_the_next() -> None:
    config = EngineConfig(max_running=1, max_chunk_tokens=3, max_step_tokens=16, adapter_patience_s=2.0)
    rig = AdapterRig(1, "abc", num_slots=64, config=config)
    rig.submit(
        *(adapted(number, revision, prompt(58, number), max_new_tokens=5) for number, revision in enumerate("abc"))
    )
    num_steps = rig.run()  # were all turns as long as the first ones, there would be no end
    rig.assert_true()
    alone = 3 * (58 // 3 + 1 + 5)
    assert num_steps < 6 * alone


def waiting(places: AdapterPlaces, number: int, revision: str) -> Sequence:
    """A sequence that waits to start with an adapter."""
    sequence = Sequence(adapted(number, revision), number, 0.0, frozenset())
    places.add(revision)
    places.joined(sequence)
    return sequence


def resident(places: AdapterPlaces, sequence: Sequence) -> None:
    """Its adapter has come, been used, and waits for it again."""
    assert places.is_ready(sequence, now=0.0)
    places.take(sequence, now=0.0)
    places.give_back(sequence)


def test_who_was_told_to_be_ready_may_start_whoever_is_asked_for_before_that() -> None:
    source = FakeAdapters(1)
    places = AdapterPlaces(source, PATIENCE)
    first, other = waiting(places, 0, "a"), waiting(places, 1, "b")
    resident(places, first)
    assert places.is_ready(first, now=1.0)
    assert not places.is_ready(other, now=1.0)
    places.take(first, now=1.0)
    assert source.loads == [("a", 0)]


def test_who_is_always_ready_and_never_starts_gives_its_place_up_after_a_while() -> None:
    places = AdapterPlaces(FakeAdapters(1), PATIENCE)
    first, other = waiting(places, 0, "a"), waiting(places, 1, "b")
    resident(places, first)
    started_at = next(
        now for now in range(1, 100) if (places.is_ready(first, float(now)), places.is_ready(other, float(now)))[1]
    )
    assert started_at == pytest.approx(PATIENCE, abs=2)
    places.take(other, float(started_at))
