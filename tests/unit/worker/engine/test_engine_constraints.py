"""Completions under a constraint: what is allowed goes with every token, and its end is theirs."""

from dataclasses import replace

import pytest

from tests.unit.worker.engine.harness import EOS, VOCAB, Rig, make_request, prompt
from worker.batch import SamplingParams
from worker.config import EngineConfig
from worker.engine import FinishReason, Request
from worker.engine.fake import continuation
from worker.engine.fake_constraint import FakeConstraint
from worker.errors import FailureCode

PROMPT = prompt(30, seed=5)


def held(number: int, constraint: FakeConstraint, **overrides: object) -> Request:
    values: dict[str, object] = {"max_new_tokens": 12, **overrides}
    request = make_request(number, PROMPT, params=SamplingParams(**values))  # type: ignore[arg-type]
    return replace(request, constraint=constraint)


def truth(constraint: FakeConstraint, num_tokens: int) -> list[int]:
    return continuation(PROMPT, num_tokens, VOCAB, constraint=constraint)


def test_a_completion_ends_where_nothing_may_follow_and_keeps_its_last_text() -> None:
    constraint = FakeConstraint(VOCAB, length=5)
    rig = Rig()
    rig.submit(held(0, constraint), held(1, constraint, stop=("never",)))
    rig.run()
    for number in (0, 1):
        assert rig.tokens(number) == truth(constraint, 5)
        assert rig.text(number) == "".join(f"{token} " for token in rig.tokens(number))
        assert rig.finish(number) is FinishReason.STOP


def test_one_that_is_too_long_ends_with_its_last_allowed_token() -> None:
    constraint = FakeConstraint(VOCAB, length=50)
    rig = Rig()
    rig.submit(held(0, constraint))
    rig.run()
    assert rig.tokens(0) == truth(constraint, 12)
    assert rig.finish(0) is FinishReason.LENGTH


def test_an_end_that_comes_with_the_last_token_is_the_end_of_the_text() -> None:
    rig = Rig()
    rig.submit(held(0, FakeConstraint(VOCAB, length=5), max_new_tokens=5))
    rig.run()
    assert rig.finish(0) is FinishReason.STOP


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_an_end_token_ends_a_text_that_may_end_whatever_ignore_eos_says(ignore_eos: bool) -> None:
    constraint = FakeConstraint(VOCAB, length=50, end_token_ids=range(VOCAB))  # from the third token on nothing else
    rig = Rig(eos_token_ids=tuple(range(VOCAB)))
    constraint.end_token_ids = tuple(range(7, VOCAB))
    rig = Rig(eos_token_ids=constraint.end_token_ids)
    rig.submit(held(0, constraint, ignore_eos=ignore_eos))
    rig.run()
    assert rig.tokens(0)[:3] == [0, 1, 2]
    assert rig.tokens(0)[3] in constraint.end_token_ids
    assert rig.finish(0) is FinishReason.STOP


def test_end_tokens_are_banned_before_min_new_tokens_where_something_else_may_follow() -> None:
    constraint = FakeConstraint(VOCAB, length=50, end_token_ids=(EOS,))
    rig = Rig()
    rig.submit(held(0, constraint, min_new_tokens=6))
    rig.run()
    banned = [batch.samples[0].banned_token_ids for batch in rig.executor.batches]
    assert banned[:7] == [(EOS,)] * 6 + [()]


def test_a_constraint_that_allows_nothing_but_the_end_is_stronger_than_min_new_tokens() -> None:
    constraint = FakeConstraint(7, length=50, end_token_ids=range(3, 7))
    rig = Rig(eos_token_ids=(3, 4, 5, 6))
    constraint.vocab_size = VOCAB
    constraint.end_token_ids = tuple(range(3, VOCAB))
    rig = Rig(eos_token_ids=constraint.end_token_ids)
    rig.submit(held(0, constraint, min_new_tokens=10))
    rig.run()
    assert len(rig.tokens(0)) == 4
    assert rig.finish(0) is FinishReason.STOP


def test_one_that_fails_ends_by_itself_and_nobody_else() -> None:
    sound = FakeConstraint(VOCAB, length=9)
    rig = Rig()
    rig.submit(held(0, FakeConstraint(VOCAB, length=9, breaks_at=3)), held(1, sound), make_request(2, PROMPT))
    rig.run()
    assert rig.failure(0).code is FailureCode.INVALID_ARGUMENT
    assert "constraint" in rig.failure(0).message
    assert rig.tokens(1) == truth(sound, 9)
    assert rig.finish(2) is FinishReason.LENGTH
    rig.assert_nothing_is_held()


@pytest.mark.parametrize("breaks_at", [0, 2])
def test_a_completion_that_fails_takes_the_others_of_its_request_along(breaks_at: int) -> None:
    rig = Rig(config=EngineConfig(max_running=2))
    rig.submit(held(0, FakeConstraint(VOCAB, length=9, breaks_at=breaks_at), n=4))
    rig.run()
    begun = {output.index for output in rig.outputs[0, 0]}
    assert begun == set(range(4))
    assert {rig.failure(0, index).code for index in begun} == {FailureCode.INVALID_ARGUMENT}
    rig.assert_nothing_is_held()


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_pause_does_not_lose_how_far_it_had_come(page_size: int) -> None:
    constraint = FakeConstraint(VOCAB, length=40)
    rig = Rig(num_slots=112, page_size=page_size, config=EngineConfig(headroom_tokens=1))
    rig.submit(make_request(1, prompt(20, seed=8), max_new_tokens=60))
    rig.submit(held(0, constraint, max_new_tokens=50))
    rig.run()
    assert rig.tokens(0) == truth(constraint, 40)
    assert rig.observer.num_pauses > 0


def test_rows_without_a_constraint_carry_none() -> None:
    rig = Rig()
    rig.submit(held(0, FakeConstraint(VOCAB, length=3)), make_request(1, PROMPT))
    rig.run()
    free = {sample.allowed is None for batch in rig.executor.batches for sample in batch.samples}
    assert free == {True, False}
