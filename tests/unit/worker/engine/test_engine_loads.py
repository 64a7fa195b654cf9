"""What lies on the host is loaded back while its sequence waits: who computes meanwhile, who hits and who gets what."""

from dataclasses import replace

import pytest

from hicache.host import MirrorRules
from tests.unit.worker.engine.harness import TENANT_A, answer, make_request, prompt
from tests.unit.worker.engine.tiered_rig import COPY_TIMEOUT_S, RULES, TieredRig
from worker.config import EngineConfig
from worker.engine import FinishReason
from worker.errors import Failure, FailureCode

HELD = prompt(40)  # what the host has
CONFIG = EngineConfig(order="priority", headroom_tokens=1)


PATIENT = replace(RULES, copy_timeout_s=1_000.0)


def warm_rig(
    num_slots: int = 200, config: EngineConfig = CONFIG, *more: list[int], rules: MirrorRules = RULES
) -> TieredRig:
    """Return a rig whose host has HELD and `more`, and whose device is empty."""
    rig = TieredRig(num_slots, config=config, rules=rules)
    for number, tokens in enumerate((HELD, *more)):
        rig.submit(make_request(900 + number, tokens, max_new_tokens=1))
        rig.serve_all()
    rig.to_host()
    assert rig.engine.load().free_slots == num_slots
    return rig


def begin_load(rig: TieredRig, number: int = 0, *, deadline: float | None = None, priority: int = 0) -> list[int]:
    """Submit a request that goes on behind HELD, and step until its load is under way; return its tokens."""
    tokens = [*HELD, *prompt(5, 100 + number)]
    rig.submit(make_request(number, tokens, deadline=deadline, priority=priority))
    while not rig.loads:
        rig.io.finish_all()
        rig.step()
    return tokens


def test_a_sequence_that_loads_does_not_compute_and_blocks_nobody() -> None:
    rig = warm_rig()
    tokens = begin_load(rig)
    num_batches = len(rig.executor.batches)
    rig.submit(make_request(1, prompt(20, 1)))
    while rig.finish(1) is None:
        rig.io.finish_all()
        rig.step()
    assert all(batch.num_sequences == 1 for batch in rig.executor.batches[num_batches:])
    assert rig.tokens(1) == answer(prompt(20, 1), 4)
    assert rig.tokens(0) == []
    rig.end_load()
    rig.run()
    assert rig.tokens(0) == answer(tokens, 4)
    assert (rig.admission(0).hit.device, rig.admission(0).hit.host) == (0, 40)


def test_steps_without_a_token_are_made_while_all_load() -> None:
    rig = warm_rig()
    begin_load(rig)
    num_runs = rig.executor.num_runs
    rig.step()
    assert rig.engine.last_step_tokens == 0
    assert rig.executor.num_runs == num_runs


def test_a_sequence_that_lacks_what_is_being_loaded_hits_it_on_the_device() -> None:
    rig = warm_rig()
    begin_load(rig)
    other = [*HELD, *prompt(9, 7)]
    rig.submit(make_request(1, other))
    rig.io.finish_all()
    rig.step()
    rig.step()
    assert len(rig.loads) == 1
    assert rig.engine.load().waiting == 1
    rig.end_load()
    rig.run()
    assert (rig.admission(1).hit.device, rig.admission(1).hit.host) == (40, 0)
    assert rig.tokens(1) == answer(other, 4)


def test_how_fast_prompts_are_computed_is_learnt_from_long_steps_alone() -> None:
    rig = TieredRig(config=CONFIG, clock=lambda: rig.now + 0.5)
    rig.submit(make_request(0, prompt(20, 1), max_new_tokens=8))
    rig.run()
    assert rig.tiers._cost.prefill_tokens_per_s is None
    rig.submit(make_request(1, prompt(80), max_new_tokens=1))
    rig.run()
    assert rig.tiers._cost.prefill_tokens_per_s == pytest.approx(160)


def test_a_load_that_fails_changes_no_answer_and_is_no_hit() -> None:
    rig = warm_rig()
    tokens = begin_load(rig)
    rig.submit(make_request(1, [*HELD, 5, 6]))
    rig.io.finish_all()
    rig.end_load(well=False)
    rig.run()
    assert rig.admission(0).hit.total == 0
    assert rig.tokens(0) == answer(tokens, 4)
    # Who waited for it waits for who computes it instead.
    assert rig.admission(1).hit.device == 40
    assert rig.tokens(1) == answer([*HELD, 5, 6], 4)
    rig.assert_nothing_is_left()


def test_many_that_wait_for_one_load_are_not_held_up_by_one_stall_after_another() -> None:
    rig = warm_rig()
    begin_load(rig)
    began_at = rig.now
    requests = [[*HELD, *prompt(3, 50 + number)] for number in range(6)]
    rig.submit(*(make_request(1 + number, tokens) for number, tokens in enumerate(requests)))
    while rig.engine.has_work:
        rig.io.finish_all()
        rig.step()
    assert rig.now - began_at < COPY_TIMEOUT_S + 20
    for number, tokens in enumerate(requests):
        assert rig.tokens(1 + number) == answer(tokens, 4)
    rig.settle()
    rig.assert_nothing_is_left()


def test_whoever_waited_for_a_load_that_nobody_wants_any_more_begins_its_own() -> None:
    rig = warm_rig()
    begin_load(rig)
    rig.submit(make_request(1, [*HELD, 5, 6]))
    rig.io.finish_all()
    rig.step()
    rig.engine.cancel((0, 0), rig.now)
    rig.step()
    assert len(rig.loads) == 2
    rig.serve_all()
    assert rig.admission(1).hit.host == 40
    assert rig.tokens(1) == answer([*HELD, 5, 6], 4)


def test_a_load_that_never_ends_is_given_up_and_computed() -> None:
    rig = warm_rig()
    tokens = begin_load(rig)
    began_at = rig.now
    rig.run()
    assert COPY_TIMEOUT_S < rig.token_times[0, 0][0] - began_at <= COPY_TIMEOUT_S + 2
    assert rig.tokens(0) == answer(tokens, 4)
    assert rig.engine.load().free_slots + rig.engine.load().evictable_slots == 200 - 40
    rig.settle()
    rig.assert_nothing_is_left()


def test_while_a_load_that_was_given_up_has_not_ended_others_compute_instead() -> None:
    rig = warm_rig(200, CONFIG, prompt(30, 1))
    begin_load(rig)
    rig.run()
    rig.submit(make_request(1, [*prompt(30, 1), 5, 6]))
    rig.io.finish_all()
    rig.step()
    assert len(rig.tokens(1)) == 1
    rig.settle()
    rig.submit(make_request(2, [*prompt(30, 1), 7, 8]))
    rig.serve_all()
    assert rig.tokens(1) == answer([*prompt(30, 1), 5, 6], 4)
    rig.to_host()
    rig.submit(make_request(3, [*prompt(30, 1), 9]))
    rig.serve_all()
    assert rig.admission(3).hit.host == 30


@pytest.mark.parametrize("by_deadline", [False, True])
def test_slots_of_a_load_come_back_when_it_ends_not_when_its_sequence_does(by_deadline: bool) -> None:
    rig = warm_rig()
    begin_load(rig, deadline=rig.now + 3 if by_deadline else None)
    if not by_deadline:
        rig.engine.cancel((0, 0), rig.now)
    rig.run()
    failure = rig.finish(0)
    assert isinstance(failure, Failure)
    assert failure.code is (FailureCode.DEADLINE_EXCEEDED if by_deadline else FailureCode.CANCELLED)
    assert rig.engine.load().free_slots == 200 - 40
    assert rig.engine.pending > 0
    rig.settle()
    assert rig.engine.load().free_slots == 200
    rig.assert_nothing_is_left()


def test_a_sequence_paused_while_it_loads_starts_again_and_is_admitted_once() -> None:
    rig = warm_rig(100, rules=PATIENT)
    tokens = begin_load(rig)
    rig.submit(make_request(1, prompt(20, 1), max_new_tokens=70, priority=1))
    while rig.observer.num_pauses == 0:
        rig.io.finish_all()
        rig.step()
    # The slots are the copy's yet. Who needs them waits for them, and need not pause for that.
    rig.step()
    rig.step()
    assert rig.engine.load().running == 1
    assert rig.finish(1) is None
    rig.serve_all()
    assert rig.observer.num_pauses == 1
    assert rig.tokens(0) == answer(tokens, 4)
    assert rig.tokens(1) == answer(prompt(20, 1), 70)
    assert rig.admission(0).hit.host == 40
    rig.settle()
    rig.assert_nothing_is_left()


def test_nobody_else_is_paused_for_slots_that_a_copy_gives_back() -> None:
    rig = warm_rig(120, rules=PATIENT)
    rig.submit(make_request(1, prompt(20, 1), max_new_tokens=70, priority=2))
    rig.submit(make_request(2, prompt(20, 2), max_new_tokens=30, priority=1))
    rig.step()
    begin_load(rig, 0)
    while rig.observer.num_pauses == 0:
        rig.step()
    rig.step()
    assert rig.observer.num_pauses == 1
    rig.serve_all()
    assert rig.tokens(1) == answer(prompt(20, 1), 70)
    assert rig.tokens(2) == answer(prompt(20, 2), 30)


def test_prompts_are_not_over_committed_by_loads() -> None:
    config = EngineConfig(max_running=8, max_chunk_tokens=8, max_step_tokens=64)
    rig = warm_rig(100, config, *(prompt(30, number) for number in range(1, 5)))
    requests = [[*prompt(30, number), *prompt(20, 40 + number)] for number in range(1, 5)]
    rig.submit(*(make_request(number, tokens, max_new_tokens=2) for number, tokens in enumerate(requests)))
    rig.submit(*(make_request(10 + number, prompt(30, 60 + number), max_new_tokens=2) for number in range(3)))
    while rig.engine.has_work:
        rig.io.finish_all()
        rig.step()
        rig.step()
        rig.step()
        rig.end_copies()
    assert rig.observer.num_pauses == 0
    assert sum(rig.admission(number).hit.host for number in range(4)) > 0
    for number, tokens in enumerate(requests):
        assert rig.tokens(number) == answer(tokens, 2)


def test_a_namespace_dropped_while_it_loads_leaves_the_answer_alone() -> None:
    rig = warm_rig()
    tokens = begin_load(rig)
    rig.tiers.drop(TENANT_A)
    rig.serve_all()
    assert rig.finish(0) is FinishReason.LENGTH
    assert rig.tokens(0) == answer(tokens, 4)
    rig.submit(make_request(1, tokens))
    rig.serve_all()
    assert rig.admission(1).hit.total == 0
    rig.settle()
    rig.assert_nothing_is_left()
