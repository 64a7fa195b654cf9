"""Log probabilities of a prompt: each token's once, in order, whatever is cached, chunked, paused or broken."""

import pytest

from tests.unit.worker.engine.harness import VOCAB, Rig, make_request, prompt
from worker.batch import SamplingParams
from worker.config import EngineConfig
from worker.engine import FinishReason, Request
from worker.engine.fake import continuation, prompt_scores
from worker.errors import FailureCode

PROMPT = prompt(150, seed=4)


def scored(number: int = 0, tokens: list[int] = PROMPT, num_top: int = 0, **options: object) -> Request:
    values: dict[str, object] = {"max_new_tokens": 5, "ignore_eos": True, "prompt_logprobs": num_top, **options}
    return make_request(number, tokens, params=SamplingParams(**values))  # type: ignore[arg-type]


def assert_true(rig: Rig, number: int = 0, tokens: list[int] = PROMPT) -> None:
    assert rig.scores(number) == prompt_scores(tokens)
    assert rig.tokens(number) == continuation(tokens, 5, VOCAB)
    assert rig.finish(number) is FinishReason.LENGTH
    rig.assert_nothing_is_held()


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [1, 7, 64, 256])
def test_every_token_but_the_first_is_scored_once(page_size: int, chunk: int) -> None:
    rig = Rig(page_size=page_size, config=EngineConfig(max_chunk_tokens=chunk))
    rig.submit(scored())
    rig.run()
    assert_true(rig)


def test_so_many_likeliest_as_asked_for_come_with_each() -> None:
    rig = Rig()
    rig.submit(scored(num_top=3, logprobs=1))
    rig.run()
    assert {len(entry.top) for entry in rig.scores(0)} == {3}
    assert {len(entry.top) for output in rig.outputs[0, 0] for entry in output.logprobs} == {1}


def test_they_come_before_the_first_token_as_they_are_computed() -> None:
    rig = Rig()
    rig.submit(scored())
    assert len(rig.step()[0].prompt_logprobs) == 64
    assert len(rig.step()[0].prompt_logprobs) == 64
    last = rig.step()[0]
    assert len(last.prompt_logprobs) == len(PROMPT) - 1 - 128
    assert len(last.token_ids) == 1


def test_what_is_cached_is_computed_for_them_and_not_counted_as_a_hit() -> None:
    rig = Rig()
    rig.submit(make_request(0, PROMPT))
    rig.run()
    rig.submit(scored(1))
    rig.run()
    assert_true(rig, 1)
    assert rig.admission(1).hit.total == 0


def test_what_they_computed_is_there_for_others() -> None:
    rig = Rig()
    rig.submit(scored(0))
    rig.run()
    rig.submit(make_request(1, PROMPT))
    rig.run()
    assert rig.admission(1).hit.total == len(PROMPT) - 1


def test_nobody_who_scores_waits_for_somebody_elses_prefill() -> None:
    rig = Rig(config=EngineConfig(max_chunk_tokens=16))
    rig.submit(make_request(0, PROMPT), scored(1))
    rig.step()
    assert rig.engine.load().running == 2
    rig.run()
    assert_true(rig, 1)


def test_the_logits_of_a_step_are_bounded_whoever_scores() -> None:
    rig = Rig(config=EngineConfig(max_step_tokens=512, max_chunk_tokens=256))
    rig.submit(*(scored(number, prompt(100, seed=number)) for number in range(6)))
    rig.run()
    for number in range(6):
        assert_true(rig, number, prompt(100, seed=number))
    for batch in rig.executor.batches:
        assert sum(sample.given_token_id is not None for sample in batch.samples) <= 64


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 64, 65, 66])
@pytest.mark.parametrize("page_size", [1, 16])
def test_prompts_of_any_length(length: int, page_size: int) -> None:
    tokens = prompt(length, seed=length)
    rig = Rig(page_size=page_size)
    rig.submit(scored(0, tokens), scored(1, tokens))
    rig.run()
    for number in (0, 1):
        assert_true(rig, number, tokens)


@pytest.mark.parametrize("page_size", [1, 16])
def test_one_that_is_paused_reports_none_twice(page_size: int) -> None:
    rig = Rig(num_slots=144, page_size=page_size, config=EngineConfig(max_chunk_tokens=4, headroom_tokens=1))
    rig.submit(make_request(1, prompt(30, seed=1), max_new_tokens=100))
    while len(rig.tokens(1)) == 0:
        rig.step()
    rig.submit(scored(0, PROMPT[:100]))
    rig.run()
    assert_true(rig, 0, PROMPT[:100])
    assert rig.observer.num_pauses > 0


@pytest.mark.parametrize("num_slots", [160, 208, 320])
def test_one_whose_prompt_is_cached_fits_into_what_holds_it_once(num_slots: int) -> None:
    rig = Rig(num_slots=num_slots, page_size=16)
    rig.submit(make_request(0, PROMPT))
    rig.run()
    rig.submit(scored(1))
    rig.run()
    assert_true(rig, 1)


def test_completion_0_has_them_and_no_other_one() -> None:
    rig = Rig()
    rig.submit(scored(n=3))
    rig.run()
    assert rig.scores(0) == prompt_scores(PROMPT)
    assert not any(output.prompt_logprobs for output in rig.outputs[0, 0] if output.index)


def test_one_that_is_cancelled_meanwhile_leaves_nothing_behind() -> None:
    rig = Rig()
    rig.submit(scored())
    rig.step()
    rig.engine.cancel((0, 0), rig.now)
    rig.run()
    assert rig.failure(0).code is FailureCode.CANCELLED
    rig.assert_nothing_is_held()


def test_a_number_below_0_is_refused() -> None:
    rig = Rig()
    rig.submit(scored(num_top=-1))
    rig.run()
    assert rig.failure(0).field == "sampling.prompt_logprobs"
