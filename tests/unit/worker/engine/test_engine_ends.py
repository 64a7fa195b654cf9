"""Sequences that don't finish: cancelled, out of time, too many, or caught in a forward pass that failed."""

from collections.abc import MutableMapping
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from tests.unit.worker.engine.harness import VOCAB, Rig, answer, make_request, prompt
from worker.config import EngineConfig
from worker.engine import DuplicateSequenceError, FinishReason
from worker.errors import Failure, FailureCode


def test_a_sequence_cancelled_at_token_five_frees_everything_at_once() -> None:
    rig = Rig()
    rig.submit(make_request(0, prompt(20), max_new_tokens=100))
    for _ in range(5):
        rig.step()
    assert len(rig.tokens(0)) == 5
    rig.engine.cancel((0, 0), rig.now)
    rig.assert_nothing_is_held()
    rig.step()
    assert rig.failure(0).code is FailureCode.CANCELLED
    assert not rig.engine.has_work


def test_a_cancelled_sequence_leaves_what_it_computed_to_others() -> None:
    rig = Rig()
    rig.submit(make_request(0, prompt(20), max_new_tokens=100))
    for _ in range(5):
        rig.step()
    tokens = rig.tokens(0)
    rig.engine.cancel((0, 0), rig.now)
    rig.submit(make_request(1, [*prompt(20), *tokens]))
    rig.run()
    assert rig.admission(1).hit.device == 24


def test_a_sequence_cancelled_while_it_waits_is_gone() -> None:
    rig = Rig(config=EngineConfig(max_running=1))
    rig.submit(make_request(0, prompt(20), max_new_tokens=10), make_request(1, prompt(20, 1)))
    rig.step()
    rig.engine.cancel((0, 1), rig.now)
    rig.run()
    assert rig.failure(1).code is FailureCode.CANCELLED
    assert rig.observer.outcomes == ["cancelled", "length"]
    rig.assert_nothing_is_held()


def test_cancelling_what_is_not_there_does_nothing() -> None:
    rig = Rig()
    rig.engine.cancel((0, 5), 0.0)
    rig.submit(make_request(0))
    rig.run()
    rig.engine.cancel((0, 0), rig.now)
    assert not rig.engine.has_work


def test_a_deadline_that_passes_in_the_line_ends_the_wait() -> None:
    rig = Rig(config=EngineConfig(max_running=1))
    rig.submit(make_request(0, prompt(20), max_new_tokens=50))
    rig.submit(make_request(1, prompt(20, 1), deadline=3.0))
    deadlines = [rig.engine.next_deadline]
    rig.step()
    rig.step()
    assert rig.finish(1) is None
    rig.step()
    assert rig.failure(1).code is FailureCode.DEADLINE_EXCEEDED
    assert [*deadlines, rig.engine.next_deadline] == [3.0, None]
    assert rig.engine.load().waiting == 0


def test_a_deadline_that_passes_while_running_frees_slots_in_the_next_step() -> None:
    rig = Rig()
    rig.submit(make_request(0, prompt(20), max_new_tokens=50, deadline=4.0))
    for _ in range(4):
        rig.step()
    assert rig.failure(0).code is FailureCode.DEADLINE_EXCEEDED
    assert len(rig.tokens(0)) == 3
    rig.assert_nothing_is_held()


def test_a_deadline_in_the_past_is_told_by_the_first_step() -> None:
    rig = Rig()
    rig.submit(make_request(0, deadline=-5.0))
    rig.step()
    assert rig.failure(0).code is FailureCode.DEADLINE_EXCEEDED
    assert rig.executor.num_runs == 0


def test_a_full_waiting_line_refuses_with_its_limits() -> None:
    rig = Rig(config=EngineConfig(max_running=2, max_waiting=3))
    rig.submit(*(make_request(number, prompt(20, number)) for number in range(7)))
    rig.run()
    for number in (5, 6):
        assert rig.failure(number).code is FailureCode.OVERLOADED
        assert "2 running and 3 waiting" in rig.failure(number).message
    assert all(rig.finish(number) is FinishReason.LENGTH for number in range(5))


def test_a_failed_forward_pass_fails_its_sequences_and_no_others() -> None:
    rig = Rig(config=EngineConfig(max_running=2))
    rig.submit(*(make_request(number, prompt(20, number), max_new_tokens=6) for number in range(4)))
    rig.executor.break_in = {3}
    rig.run()
    for number in (0, 1):
        assert rig.failure(number).code is FailureCode.INTERNAL
        assert len(rig.tokens(number)) == 2
    for number in (2, 3):
        assert rig.tokens(number) == answer(prompt(20, number), 6)
    rig.assert_nothing_is_held()


def test_what_a_failed_pass_has_written_is_not_reused() -> None:
    rig = Rig(config=EngineConfig(max_chunk_tokens=10))
    rig.submit(make_request(0, prompt(40)))
    rig.executor.break_in = {3}
    rig.run()
    rig.submit(make_request(1, prompt(40)))
    rig.run()
    assert rig.admission(1).hit.device == 20
    assert rig.tokens(1) == answer(prompt(40), 4)


def test_a_forward_pass_with_too_few_tokens_is_a_failed_one() -> None:
    rig = Rig()
    rig.executor.drop = 1
    rig.submit(make_request(0), make_request(1, [4, 5]))
    rig.run()
    assert rig.failure(0).code is rig.failure(1).code is FailureCode.INTERNAL
    rig.assert_nothing_is_held()


@pytest.mark.parametrize("token_id", [-1, VOCAB])
def test_a_token_outside_of_the_vocabulary_ends_its_own_sequence_and_no_other(token_id: int) -> None:
    rig = Rig()
    rig.executor.spoil[7] = token_id
    rig.submit(make_request(0, [7, 8, 9]), make_request(1, [1, 2, 3]))
    rig.run()

    assert rig.failure(0).code is FailureCode.INTERNAL
    assert rig.tokens(0) == []
    assert len(rig.tokens(1)) == 4
    rig.assert_nothing_is_held()


def test_abort_ends_those_who_run_and_those_who_wait() -> None:
    rig = Rig(config=EngineConfig(max_running=1))
    rig.submit(make_request(0), make_request(1))
    rig.step()
    rig.engine.abort(Failure(FailureCode.SHUTTING_DOWN, "bye"), rig.now)
    rig.run()
    assert rig.failure(0).code is rig.failure(1).code is FailureCode.SHUTTING_DOWN
    rig.assert_nothing_is_held()


def test_a_closed_engine_refuses_and_goes_on_with_what_it_has() -> None:
    rig = Rig()
    rig.submit(make_request(0))
    rig.engine.close()
    rig.submit(make_request(1))
    rig.run()
    assert rig.finish(0) is FinishReason.LENGTH
    assert rig.failure(1).code is FailureCode.SHUTTING_DOWN


def test_an_id_that_is_alive_cannot_be_taken_twice() -> None:
    rig = Rig()
    rig.submit(make_request(0))
    with pytest.raises(DuplicateSequenceError):
        rig.submit(make_request(0))
    rig.engine.cancel((0, 0), rig.now)
    with pytest.raises(DuplicateSequenceError):
        rig.submit(make_request(0))
    rig.run()
    rig.submit(make_request(0, [9, 9]))
    rig.step()
    assert rig.engine.load().running == 1


def test_every_ending_is_observed_once_with_its_outcome() -> None:
    rig = Rig(config=EngineConfig(max_running=1, max_waiting=2))
    rig.submit(make_request(0, max_new_tokens=9), make_request(1, deadline=2.0), make_request(2), make_request(3))
    rig.submit(make_request(4, []))
    rig.step()
    rig.engine.cancel((0, 2), rig.now)
    rig.run()
    assert sorted(rig.observer.outcomes) == [
        "cancelled",
        "deadline_exceeded",
        "invalid_argument",
        "length",
        "overloaded",
    ]


def test_the_load_is_true_after_each_step() -> None:
    rig = Rig(num_slots=100, config=EngineConfig(max_running=2))
    rig.submit(*(make_request(number, prompt(10, number)) for number in range(3)))
    rig.step()
    load = rig.observer.loads[-1]
    assert (load.running, load.waiting, load.num_slots) == (2, 1, 100)
    assert load == rig.engine.load()


def test_a_failed_pass_is_logged_with_its_traceback_and_without_what_the_frames_hold() -> None:
    rig = Rig()
    rig.submit(make_request(0, [871, 872, 873]))
    rig.executor.break_in = {1}
    with capture_logs() as logs:
        rig.step()
    [entry] = logs
    assert entry["event"] == "forward pass failed"
    assert "broken on purpose" in entry["traceback"]
    # Some renderers print the variables of a traceback, and those hold prompts.
    assert "exc_info" not in entry
    assert "871" not in str(entry)


def test_a_log_that_cannot_be_written_fails_nobody_else() -> None:
    def closed(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        raise BrokenPipeError

    rig = Rig(config=EngineConfig(max_running=1))
    rig.submit(make_request(0), make_request(1, [4, 5]))
    rig.executor.break_in = {1}
    before = structlog.get_config()["processors"]
    structlog.configure(processors=[closed])
    try:
        rig.run()
    finally:
        structlog.configure(processors=before)
    assert rig.failure(0).code is FailureCode.INTERNAL
    assert rig.tokens(1) == answer([4, 5], 4)
