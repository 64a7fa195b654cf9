"""Several completions of one prompt: what they share, how each goes on, and that they end together when they fail."""

import pytest

from tests.unit.worker.engine.harness import EOS, VOCAB, Rig, make_request, prompt
from worker.batch import SamplingParams
from worker.config import EngineConfig
from worker.engine import FinishReason, Request
from worker.engine.branches import branch_seed
from worker.engine.fake import continuation
from worker.engine.fake_constraint import FakeConstraint
from worker.errors import Failure, FailureCode

PROMPT = prompt(40, seed=3)
N = 4


def params(**overrides: object) -> SamplingParams:
    values: dict[str, object] = {"max_new_tokens": 9, "n": N, "seed": 7, "ignore_eos": True, **overrides}
    return SamplingParams(**values)  # type: ignore[arg-type]


def several(number: int = 0, tokens: list[int] = PROMPT, **overrides: object) -> Request:
    return make_request(number, tokens, params=params(**overrides))


def truth(index: int, num_tokens: int = 9, seed: int = 7, **options: object) -> list[int]:
    return continuation(PROMPT, num_tokens, VOCAB, seed=branch_seed(seed, index), **options)  # type: ignore[arg-type]


def assert_all_true(rig: Rig, number: int = 0, n: int = N) -> None:
    for index in range(n):
        assert rig.tokens(number, index) == truth(index)
        assert rig.finish(number, index) is FinishReason.LENGTH
    rig.assert_nothing_is_held()


@pytest.mark.parametrize("page_size", [1, 16])
def test_each_completion_is_what_its_seed_gives_and_the_first_what_one_alone_gives(page_size: int) -> None:
    rig = Rig(page_size=page_size)
    rig.submit(several(0), several(1, n=1))
    rig.run()
    assert_all_true(rig)
    assert rig.tokens(1) == rig.tokens(0, 0)
    assert len({tuple(rig.tokens(0, index)) for index in range(N)}) == N


def test_seeds_of_completions_are_the_requests_own_and_then_unrelated_ones() -> None:
    seeds = {branch_seed(seed, index) for seed in range(50) for index in range(64)}
    assert len(seeds) == 50 * 64
    assert branch_seed(5, 0) == 5
    assert all(0 <= seed < 1 << 64 for seed in seeds)


def test_the_prompt_is_computed_once_and_every_first_token_comes_of_one_row() -> None:
    rig = Rig()
    rig.submit(several())
    rig.run()
    computed = sum(num_tokens for num_tokens, _, _ in rig.observer.steps)
    assert computed == len(PROMPT) + N * 8  # the last token of each is never computed
    (first,) = [batch for batch in rig.executor.batches if len(batch.samples) > batch.num_sequences]
    assert [sample.row for sample in first.samples] == [len(PROMPT) - 1] * N


def test_at_larger_pages_no_more_than_the_last_page_is_computed_again() -> None:
    rig = Rig(page_size=16)
    rig.submit(several())
    rig.run()
    computed = sum(num_tokens for num_tokens, _, _ in rig.observer.steps)
    assert computed == len(PROMPT) + N * 8 + (N - 1) * (len(PROMPT) % 16)


def test_the_prompt_is_counted_once() -> None:
    rig = Rig()
    rig.submit(several(0), several(1))
    rig.run()
    assert [admission.prompt_tokens for admission in rig.observer.admissions] == [len(PROMPT)] * 2
    assert rig.admission(0).hit.total == 0
    assert rig.admission(1).hit.total == len(PROMPT) - 1
    assert len(rig.observer.ttfts) == 2 * N


def test_completions_end_each_at_its_own_time() -> None:
    end = truth(2)[3]
    assert all(end not in truth(index)[:9] for index in (0, 1, 3))
    rig = Rig()
    rig.submit(several(stop_token_ids=(end,)))
    rig.run()
    assert rig.tokens(0, 2) == truth(2)[:4]
    assert rig.finish(0, 2) is FinishReason.STOP
    assert [rig.finish(0, index) for index in (0, 1, 3)] == [FinishReason.LENGTH] * 3


def test_a_first_token_may_end_any_completion_the_leader_included() -> None:
    for index in range(N):
        rig = Rig()
        rig.submit(several(stop_token_ids=(truth(index)[0],)))
        rig.run()
        assert rig.tokens(0, index) == truth(index)[:1]
        assert rig.finish(0, index) is FinishReason.STOP
        for other in set(range(N)) - {index}:
            assert rig.tokens(0, other) == truth(other)
        rig.assert_nothing_is_held()


def test_a_single_new_token_of_each_needs_a_single_step() -> None:
    rig = Rig()
    rig.submit(several(max_new_tokens=1))
    assert rig.run() == 1
    assert [rig.tokens(0, index) for index in range(N)] == [truth(index, 1) for index in range(N)]


def test_stop_strings_and_log_probabilities_are_each_completions_own() -> None:
    stop = str(truth(1)[4])
    rig = Rig()
    rig.submit(several(stop=(stop,), logprobs=1))
    rig.run()
    assert rig.tokens(0, 1) == truth(1)[:5]
    assert rig.text(0, 1) == "".join(f"{token} " for token in truth(1)[:4])
    assert rig.tokens(0, 0) == truth(0)
    for index in range(N):
        reported = [entry for output in rig.outputs[0, 0] if output.index == index for entry in output.logprobs]
        assert len(reported) == len(rig.tokens(0, index))


def test_min_new_tokens_and_penalties_look_at_the_own_tokens_only() -> None:
    rig = Rig()
    rig.submit(several(min_new_tokens=3, ignore_eos=False))
    rig.run()
    for batch in rig.executor.batches:
        for sample in batch.samples:
            assert sample.banned_token_ids == ((EOS,) if sample.position < len(PROMPT) + 3 else ())
    last = rig.executor.batches[-1]
    assert len({id(sample.output_token_ids) for sample in last.samples}) == len(last.samples)


@pytest.mark.parametrize("steps", range(8))
def test_a_cancelled_request_ends_all_of_them_whenever_it_comes(steps: int) -> None:
    rig = Rig(config=EngineConfig(max_running=2, max_chunk_tokens=16))
    rig.submit(several(max_new_tokens=50), make_request(1, prompt(5)))
    for _ in range(steps):
        rig.step()
    rig.engine.cancel((0, 0), rig.now)
    rig.step()
    begun = {output.index for output in rig.outputs[0, 0]}
    assert {rig.failure(0, index).code for index in begun} == {FailureCode.CANCELLED}
    assert begun == (set(range(N)) if steps > 2 else {0})
    rig.run()
    rig.assert_nothing_is_held()


def test_a_request_cancelled_under_a_pass_that_would_begin_its_completions_begins_none() -> None:
    rig = Rig()
    rig.beside = lambda: rig.engine.cancel((0, 0), rig.now)
    rig.submit(several())
    rig.run()
    assert {output.index for output in rig.outputs[0, 0]} == {0}
    assert rig.failure(0).code is FailureCode.CANCELLED
    rig.assert_nothing_is_held()


def test_completions_that_wait_and_run_are_cancelled_under_a_pass_alike() -> None:
    rig = Rig(config=EngineConfig(max_running=2))
    rig.submit(several(max_new_tokens=50))
    rig.step()
    rig.step()
    rig.beside = lambda: rig.engine.cancel((0, 0), rig.now)
    rig.step()
    rig.step()
    assert {rig.failure(0, index).code for index in range(N)} == {FailureCode.CANCELLED}
    rig.assert_nothing_is_held()


def test_a_deadline_ends_all_of_them() -> None:
    rig = Rig(config=EngineConfig(max_running=2))
    rig.submit(make_request(0, PROMPT, params=params(max_new_tokens=50), deadline=6.0))
    rig.run()
    assert {rig.failure(0, index).code for index in range(N)} == {FailureCode.DEADLINE_EXCEEDED}
    rig.assert_nothing_is_held()


@pytest.mark.parametrize("broken_run", [1, 2, 5])
def test_a_forward_pass_that_fails_ends_all_of_them(broken_run: int) -> None:
    rig = Rig(config=EngineConfig(max_running=3))
    rig.executor.break_in = {broken_run}
    rig.submit(several(max_new_tokens=50))
    rig.run()
    begun = {output.index for output in rig.outputs[0, 0]}
    assert {rig.failure(0, index).code for index in begun} == {FailureCode.INTERNAL}
    assert len(begun) == (1 if broken_run == 1 else N)
    rig.assert_nothing_is_held()


def test_a_first_token_outside_of_the_vocabulary_ends_the_request_and_no_neighbour() -> None:
    rig = Rig()
    rig.executor.spoil = {PROMPT[0]: VOCAB}
    rig.submit(several(), make_request(1, [1, 2, 3]))
    rig.run()
    assert rig.failure(0).code is FailureCode.INTERNAL
    assert rig.finish(1) is FinishReason.LENGTH
    rig.assert_nothing_is_held()


def test_a_leader_that_was_paused_before_it_had_its_prompt_begins_them_all_the_same() -> None:
    rig = Rig(num_slots=64, config=EngineConfig(max_chunk_tokens=4, max_step_tokens=64, headroom_tokens=1))
    older = make_request(1, prompt(20, seed=9), max_new_tokens=30, priority=1)
    rig.submit(older)
    rig.step()
    rig.submit(several())
    rig.run()
    assert_all_true(rig)
    assert rig.tokens(1) == continuation(prompt(20, seed=9), 30, VOCAB)
    assert rig.observer.num_pauses > 0


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("max_running", [1, 2, 8])
def test_completions_are_paused_and_go_on_where_slots_are_few(page_size: int, max_running: int) -> None:
    rig = Rig(
        num_slots=64,
        page_size=page_size,
        config=EngineConfig(headroom_tokens=1, max_running=max_running, max_waiting=9),
    )
    rig.submit(several(n=N))
    rig.run()
    assert_all_true(rig)
    assert (rig.observer.num_pauses > 0) is (max_running == 8)


def test_many_completions_are_the_same_whatever_the_batch() -> None:
    alone = Rig(config=EngineConfig(max_running=1, max_waiting=100))
    company = Rig(config=EngineConfig(max_running=32))
    alone.submit(several(n=32))
    company.submit(*(make_request(number, prompt(9, number)) for number in range(1, 9)))
    company.step()
    company.submit(several(n=32))
    for rig in (alone, company):
        rig.run()
        assert_all_true(rig, n=32)


def test_every_completion_counts_against_the_limits_of_running_and_waiting() -> None:
    rig = Rig(config=EngineConfig(max_running=2, max_waiting=4))
    rig.submit(several(0, n=7), several(1, n=4), several(2, n=3), several(3, n=2))
    refused = rig.step()
    assert {output.sequence_id[1] for output in refused if output.finish} == {0, 2}
    impossible, full = rig.failure(0), rig.failure(2)
    assert (impossible.code, impossible.field) == (FailureCode.INVALID_ARGUMENT, "sampling.n")
    assert "2 running and 4 waiting" in impossible.message
    assert full.code is FailureCode.OVERLOADED
    rig.run()
    assert rig.finish(3, 1) is FinishReason.LENGTH
    rig.submit(several(4, n=6))
    rig.run()
    assert [rig.finish(4, index) for index in range(6)] == [FinishReason.LENGTH] * 6


def test_a_request_without_any_completion_is_refused() -> None:
    rig = Rig()
    rig.submit(several(n=0))
    rig.run()
    assert rig.failure(0).field == "sampling.n"


def test_each_completion_is_held_to_the_constraint_from_its_beginning() -> None:
    constraint = FakeConstraint(VOCAB, length=6)
    rig = Rig()
    request = several(max_new_tokens=20)
    rig.submit(Request(request.sequence_id, "", request.key, request.params, "a", constraint=constraint))
    rig.run()
    for index in range(N):
        assert rig.tokens(0, index) == truth(index, 6, constraint=constraint)
        assert rig.finish(0, index) is FinishReason.STOP


def test_an_abort_ends_every_completion_once() -> None:
    rig = Rig(config=EngineConfig(max_running=2))
    rig.submit(several(max_new_tokens=50))
    for _ in range(3):
        rig.step()
    rig.engine.close()
    rig.engine.abort(Failure(FailureCode.SHUTTING_DOWN, "the worker is shutting down"), rig.now)
    rig.step()
    assert {rig.failure(0, index).code for index in range(N)} == {FailureCode.SHUTTING_DOWN}
    rig.assert_nothing_is_held()
