"""Too few slots: who is paused, how it resumes, and that everybody gets there."""

import pytest

from tests.unit.worker.engine.harness import Rig, answer, make_request, prompt
from worker.batch import SamplingParams
from worker.config import EngineConfig
from worker.engine import FinishReason
from worker.errors import FailureCode

TIGHT = EngineConfig(max_running=8, max_chunk_tokens=16, max_step_tokens=64, headroom_tokens=1)


def tight_rig(num_requests: int, page_size: int = 1, num_slots: int = 128, config: EngineConfig = TIGHT) -> Rig:
    """Return a rig with requests that have room for their prompts, but not for all of their answers."""
    rig = Rig(num_slots=num_slots, page_size=page_size, config=config)
    rig.submit(*(make_request(number, prompt(20, number), max_new_tokens=60) for number in range(num_requests)))
    return rig


@pytest.mark.parametrize("page_size", [1, 16])
def test_paused_sequences_end_with_the_answer_of_an_undisturbed_run(page_size: int) -> None:
    rig = tight_rig(6, page_size)
    rig.run()
    assert rig.observer.num_pauses > 0
    for number in range(6):
        assert rig.tokens(number) == answer(prompt(20, number), 60)
        assert rig.finish(number) is FinishReason.LENGTH
    rig.assert_nothing_is_held()


def test_a_paused_sequence_counts_once() -> None:
    rig = tight_rig(6)
    rig.run()
    assert rig.observer.num_pauses > 0
    assert len(rig.observer.admissions) == 6
    assert sum(admission.hit.total for admission in rig.observer.admissions) == 0
    assert all(rig.admission(number).prompt_tokens == 20 for number in range(6))


def test_the_newest_is_paused_first_and_the_oldest_never() -> None:
    rig = tight_rig(2, num_slots=100)
    rig.run()
    assert rig.is_undisturbed(0)
    assert not rig.is_undisturbed(1)


def test_of_many_the_oldest_ends_first() -> None:
    rig = tight_rig(6)
    rig.run()
    assert rig.is_undisturbed(0)
    ends = [rig.token_times[0, number][-1] for number in range(6)]
    assert ends == sorted(ends)


def test_low_priority_is_paused_before_high_however_new_that_is() -> None:
    rig = Rig(num_slots=100, config=TIGHT)
    rig.submit(make_request(0, prompt(20), max_new_tokens=60, priority=0))
    rig.submit(make_request(1, prompt(20, 1), max_new_tokens=60, priority=1))
    rig.run()
    assert rig.observer.num_pauses > 0
    assert rig.is_undisturbed(1)
    assert not rig.is_undisturbed(0)
    assert rig.tokens(0) == answer(prompt(20), 60)


def test_a_resumed_sequence_computes_again_only_what_was_evicted() -> None:
    rig = tight_rig(3, num_slots=150)
    rig.run()
    assert rig.observer.num_pauses > 0
    undisturbed = 3 * (20 + 59)
    assert sum(batch.num_tokens for batch in rig.executor.batches) <= undisturbed + rig.observer.num_evicted


@pytest.mark.parametrize("num_slots", [87, 88])
def test_a_prefill_takes_slots_back_from_a_newer_sequence_of_the_same_step(num_slots: int) -> None:
    config = EngineConfig(max_running=8, max_chunk_tokens=1, max_step_tokens=64, headroom_tokens=1)
    rig = Rig(num_slots=num_slots, config=config)
    rig.submit(make_request(0, prompt(80), max_new_tokens=2), make_request(1, [1], max_new_tokens=70))
    rig.run()
    assert rig.observer.num_pauses > 0
    # A token of its prompt in every step: the other one decodes before it, but not at its cost.
    assert rig.token_times[0, 0] == [80.0, 81.0]
    assert rig.tokens(1) == answer([1], 70)


def test_pauses_do_not_pile_up_when_many_compete_for_few_places() -> None:
    config = EngineConfig(max_running=8, max_chunk_tokens=16, max_step_tokens=64, headroom_tokens=16)
    rig = Rig(num_slots=512, config=config)
    rig.submit(*(make_request(number, prompt(10, number), max_new_tokens=250) for number in range(12)))
    rig.run(check=False)
    # There is room for two of twelve at full length.
    assert 0 < rig.observer.num_pauses <= 18
    rig.assert_nothing_is_held()


def test_prompts_are_never_over_committed() -> None:
    rig = Rig(num_slots=100, config=EngineConfig(max_running=8, max_chunk_tokens=8, max_step_tokens=64))
    rig.submit(*(make_request(number, prompt(45, number), max_new_tokens=2) for number in range(6)))
    rig.run()
    assert rig.observer.num_pauses == 0


def test_cached_tokens_that_a_request_uses_are_no_room_for_its_others() -> None:
    rig = Rig(num_slots=120)
    rig.submit(make_request(0, prompt(61), max_new_tokens=1))
    rig.run()
    rig.submit(make_request(1, prompt(20, 1), max_new_tokens=40))
    rig.step()
    # 61 tokens are cached and could be evicted, but not for the one who needs 50 more behind them.
    rig.submit(make_request(2, [*prompt(61), *prompt(50, 2)]))
    rig.step()
    assert rig.engine.load().waiting == 1
    rig.run()
    assert rig.observer.num_pauses == 0
    assert rig.admission(2).hit.device == 61


def test_the_largest_sequence_that_can_fit_does() -> None:
    rig = Rig(num_slots=64, page_size=16)
    rig.submit(make_request(0, prompt(50), max_new_tokens=14))
    rig.run()
    assert len(rig.tokens(0)) == 14
    rig.submit(make_request(1, prompt(50, 1), max_new_tokens=14))
    rig.run()
    assert rig.tokens(1) == answer(prompt(50, 1), 14)


@pytest.mark.parametrize(
    ("length", "max_new_tokens", "field"),
    [
        (50, 15, "sampling.max_new_tokens"),
        (64, 1, "prompt"),
        (5000, 1, "prompt"),
        (1, 10**9, "sampling.max_new_tokens"),
    ],
)
def test_what_can_never_fit_is_refused_at_once_with_field_and_limit(
    length: int, max_new_tokens: int, field: str
) -> None:
    rig = Rig(num_slots=64, page_size=16)
    rig.submit(make_request(0, prompt(length), max_new_tokens=max_new_tokens))
    rig.step()
    failure = rig.failure(0)
    assert failure.code is FailureCode.INVALID_ARGUMENT
    assert failure.field == field
    assert "64 tokens" in failure.message


@pytest.mark.parametrize(
    ("request_parts", "field"),
    [
        ({"tokens": []}, "prompt"),
        ({"tokens": [1, 1000]}, "prompt"),
        ({"max_new_tokens": 0}, "sampling.max_new_tokens"),
        ({"params": SamplingParams(max_new_tokens=1, stop_token_ids=(1000,))}, "sampling.stop_token_ids"),
        ({"max_new_tokens": 95}, "sampling.max_new_tokens"),
    ],
)
def test_bad_requests_are_refused_with_the_field_and_harm_nobody(request_parts: dict[str, object], field: str) -> None:
    rig = Rig(context_length=97)
    rig.submit(make_request(0, prompt(20)))
    rig.submit(make_request(1, **request_parts))  # type: ignore[arg-type]
    rig.run()
    assert rig.failure(1).code is FailureCode.INVALID_ARGUMENT
    assert rig.failure(1).field == field
    assert rig.tokens(0) == answer(prompt(20), 4)


def test_progress_is_made_even_if_duplicates_fill_the_pool() -> None:
    # Both compute the same prompt side by side, because waiting is not worth it to them: the second one to commit holds
    # its own slots and locks the first one's. Neither alone would fit into the pool with duplicates.
    config = EngineConfig(max_running=2, max_chunk_tokens=4, max_step_tokens=64, min_shared_tokens=1000)
    rig = Rig(num_slots=64, config=config)
    rig.submit(make_request(0, prompt(30), max_new_tokens=30), make_request(1, prompt(30), max_new_tokens=30))
    rig.run()
    assert rig.tokens(0) == rig.tokens(1) == answer(prompt(30), 30)
    rig.assert_nothing_is_held()


def test_eviction_makes_room_before_anybody_is_paused() -> None:
    rig = Rig(num_slots=100)
    for number in range(10):
        rig.submit(make_request(number, prompt(50, number), max_new_tokens=10))
        rig.run()
    assert rig.observer.num_pauses == 0
    assert rig.observer.num_evicted > 0
