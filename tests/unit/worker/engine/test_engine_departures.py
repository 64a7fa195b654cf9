"""Adapters that are taken away: nobody new may name them, those that do go on, and nothing of them stays behind."""

import pytest

from tests.unit.worker.engine.adapter_rig import AdapterRig, adapted, truth
from tests.unit.worker.engine.harness import prompt
from worker.batch import SamplingParams
from worker.config import EngineConfig
from worker.engine.departures import Gone
from worker.errors import Failure, FailureCode

FOUR_COMPLETIONS = SamplingParams(max_new_tokens=20, temperature=0.0, ignore_eos=True, n=4)


def test_new_requests_are_not_found_while_those_in_flight_end_undisturbed() -> None:
    rig = AdapterRig(1, "a")
    rig.submit(adapted(0, "a", max_new_tokens=20))
    rig.step()
    rig.retire("a")
    rig.submit(adapted(1, "a"))
    rig.run()
    assert (rig.failure(1).code, rig.failure(1).field) == (FailureCode.NOT_FOUND, "adapter")
    rig.assert_true(0)
    assert rig.is_undisturbed(0)


def test_an_adapter_is_gone_only_when_its_last_sequence_is() -> None:
    rig = AdapterRig(1, "a")
    rig.submit(adapted(0, "a", max_new_tokens=5), adapted(1, "a", prompt(9), max_new_tokens=15))
    rig.step()
    rig.retire("a")
    while rig.finish(1) is None:
        assert rig.gone == []
        rig.step()
    rig.run()
    assert rig.gone == [Gone(failed_sequences=0, dropped_tokens=rig.gone[0].dropped_tokens)]
    assert rig.engine.adapters() == ()
    assert rig.adapters.places == [None]


def test_what_is_still_there_when_the_time_is_over_fails_and_is_counted() -> None:
    rig = AdapterRig(1, "a")
    rig.submit(adapted(0, "a", max_new_tokens=500), adapted(1, "a", prompt(9), max_new_tokens=5), adapted(2, ""))
    rig.step()
    rig.retire("a", grace=20.0)
    rig.run()
    assert rig.failure(0).code is FailureCode.NOT_FOUND
    rig.assert_true(1, 2)
    assert [gone.failed_sequences for gone in rig.gone] == [1]
    assert rig.now <= 1 + 20 + 3
    rig.assert_nothing_is_held()


def test_what_was_cached_for_an_adapter_goes_with_it() -> None:
    rig = AdapterRig(1, "ab")
    rig.run_with(0, "a", tokens=prompt(40))
    rig.run_with(1, "b", tokens=prompt(30))
    before = rig.engine.load().free_slots
    rig.retire("a")
    rig.run()
    assert [gone.dropped_tokens for gone in rig.gone] == [43]  # the last token is never computed
    assert rig.engine.load().free_slots == before + 43
    rig.run_with(2, "b", tokens=prompt(30))
    assert rig.admission(2).hit.total == 29


def test_the_same_adapter_loaded_again_finds_nothing_of_before() -> None:
    rig = AdapterRig(1, "a")
    rig.run_with(0, "a", tokens=prompt(40))
    rig.retire("a")
    rig.run()
    rig.engine.add_adapter("a")
    rig.run_with(1, "a", tokens=prompt(40))
    assert rig.admission(1).hit.total == 0
    rig.assert_true()


def test_sequences_that_wait_for_an_adapter_get_it_although_it_is_going() -> None:
    rig = AdapterRig(1, "ab")
    rig.submit(adapted(0, "a", max_new_tokens=30), adapted(1, "b"))
    rig.step()
    rig.retire("b")
    rig.run()
    rig.assert_true()
    assert [gone.failed_sequences for gone in rig.gone] == [0]


def test_sequences_paused_for_another_adapter_end_before_theirs_goes() -> None:
    rig = AdapterRig(1, "ab")
    rig.submit(adapted(0, "a", max_new_tokens=60), adapted(1, "b", max_new_tokens=40))
    rig.step()
    rig.retire("a")
    rig.run()
    rig.assert_true()
    assert rig.observer.num_pauses > 0
    assert [gone.failed_sequences for gone in rig.gone] == [0]


def test_a_load_under_way_ends_before_its_adapter_can_go_wrong() -> None:
    rig = AdapterRig(1, "ab")
    rig.adapters.slow = True
    rig.submit(adapted(0, "a"))
    rig.step()
    rig.engine.cancel((0, 0), rig.now)
    rig.retire("a")
    rig.step()
    assert len(rig.gone) == 1
    rig.adapters.finish()
    rig.adapters.slow = False
    rig.run_with(1, "b")
    rig.assert_true(1)


@pytest.mark.parametrize("overlapped", [False, True])
def test_cancelled_sequences_let_their_adapter_go_at_once(overlapped: bool) -> None:
    rig = AdapterRig(2, "a")
    if overlapped:
        rig.beside = lambda: None
    rig.submit(*(adapted(number, "a", prompt(9, number), max_new_tokens=500) for number in range(4)))
    for _ in range(5):
        rig.step()
    rig.retire("a")
    for number in range(4):
        rig.engine.cancel((0, number), rig.now)
    rig.step()
    rig.step()
    assert [gone.failed_sequences for gone in rig.gone] == [0]
    rig.run()
    rig.assert_nothing_is_held()


def test_a_deadline_ends_a_sequence_of_a_departing_adapter_as_a_deadline() -> None:
    rig = AdapterRig(1, "a")
    rig.submit(adapted(0, "a", max_new_tokens=500, deadline=9.0))
    rig.step()
    rig.retire("a")
    rig.run()
    assert rig.failure(0).code is FailureCode.DEADLINE_EXCEEDED
    assert [gone.failed_sequences for gone in rig.gone] == [0]


def test_an_engine_that_fails_lets_its_departing_adapters_go() -> None:
    rig = AdapterRig(1, "a")
    rig.submit(adapted(0, "a", max_new_tokens=500))
    rig.step()
    rig.retire("a")
    rig.engine.abort(Failure(FailureCode.INTERNAL, "the engine failed"), rig.now)
    assert len(rig.gone) == 1
    rig.run()
    rig.assert_nothing_is_held()


def test_whoever_asked_for_a_departure_is_told_and_the_earliest_end_counts() -> None:
    rig = AdapterRig(1, "a")
    rig.submit(adapted(0, "a", max_new_tokens=500))
    rig.step()
    rig.retire("a", grace=1000.0)
    rig.retire("a", grace=10.0)
    rig.retire("a", grace=500.0)
    rig.run()
    assert rig.now < 20
    assert [gone.failed_sequences for gone in rig.gone] == [1, 1, 1]


def test_an_adapter_that_is_not_there_is_gone_at_once() -> None:
    rig = AdapterRig(1)
    rig.retire("a")
    assert rig.gone == [Gone(0, 0)]
    assert not rig.engine.has_work


def test_a_failed_load_of_a_departing_adapter_ends_the_wait_for_it() -> None:
    rig = AdapterRig(1, "a", config=EngineConfig())
    rig.adapters.slow = True
    rig.adapters.broken = {"a"}
    rig.submit(adapted(0, "a"))
    rig.step()
    rig.retire("a")
    rig.step()
    rig.adapters.finish()
    rig.run()
    assert rig.failure(0).code is FailureCode.INTERNAL
    assert [gone.failed_sequences for gone in rig.gone] == [1]


@pytest.mark.parametrize("page_size", [1, 16])
def test_completions_of_one_prompt_end_before_their_adapter_goes(page_size: int) -> None:
    rig = AdapterRig(1, "a", page_size=page_size, num_slots=4096)
    rig.submit(adapted(0, "a", prompt(40), params=FOUR_COMPLETIONS))
    rig.step()
    rig.retire("a")
    rig.run()
    for index in range(4):
        assert rig.tokens(0, index) == truth(rig.requests[0], index)
    assert [gone.failed_sequences for gone in rig.gone] == [0]
    rig.assert_nothing_is_held()


@pytest.mark.parametrize("steps", range(6))
def test_an_adapter_whose_completions_are_cancelled_at_any_moment_goes(steps: int) -> None:
    rig = AdapterRig(1, "ab", config=EngineConfig(max_running=2, max_step_tokens=64, max_chunk_tokens=16))
    rig.submit(adapted(0, "a", prompt(40), params=FOUR_COMPLETIONS), adapted(1, "b", max_new_tokens=30))
    for _ in range(steps):
        rig.step()
    rig.retire("a")
    rig.engine.cancel((0, 0), rig.now)
    rig.step()
    rig.step()
    assert len(rig.gone) == 1
    rig.run()
    rig.assert_true(1)
    rig.assert_nothing_is_held()
