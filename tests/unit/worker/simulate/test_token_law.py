"""What a simulated model says next is a function of the tokens before, of seed and position, and of nothing else."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.batch import SampleRow, SamplingParams
from worker.engine.constraints import pack
from worker.simulate.law import TokenLaw
from worker.simulate.tokenizer import END_ID, NUM_TOKENS, byte_tokenizer, letters

LETTERS = letters(byte_tokenizer())
NEVER = 1e-12
LAW = TokenLaw(LETTERS, END_ID, NEVER)
GREEDY = SamplingParams(max_new_tokens=1, temperature=0.0, logprobs=20)
HISTORIES = st.integers(0, 2**64 - 1)


def row(params: SamplingParams = GREEDY, position: int = 10, **more: object) -> SampleRow:
    return replace(SampleRow(0, params, position, np.zeros(1, dtype=np.int32), []), **more)  # type: ignore[arg-type]


def test_there_are_32_letters_each_a_token_of_its_own() -> None:
    assert len(set(LETTERS)) == 32
    assert byte_tokenizer().decode(list(LETTERS)) == "abcdefghijklmnopqrstuvwxyz ,.-'\n"


def test_text_becomes_bytes_and_marks_become_tokens() -> None:
    tokenizer = byte_tokenizer()
    text = "Grüße, 世界!\n  'tis"
    assert len(tokenizer.encode(text).ids) == len(text.encode())
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("<|im_end|>").ids == [END_ID]
    assert tokenizer.get_vocab_size() == NUM_TOKENS


@given(HISTORIES)
def test_greedy_takes_the_likeliest(history: int) -> None:
    chosen = LAW.choose(row(), history)
    assert chosen.logprobs is not None
    assert chosen.logprobs.top[0] == (chosen.token_id, chosen.logprobs.logprob)


@given(HISTORIES, st.integers(0, 2**64 - 1))
def test_log_probabilities_are_those_of_a_distribution(history: int, seed: int) -> None:
    chosen = LAW.choose(row(SamplingParams(max_new_tokens=1, seed=seed, logprobs=20)), history)
    assert chosen.logprobs is not None
    top = chosen.logprobs.top
    assert len({token_id for token_id, _ in top}) == 20
    assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
    assert sum(math.exp(value) for _, value in top) < 1
    assert dict(top).get(chosen.token_id, chosen.logprobs.logprob) == chosen.logprobs.logprob


def test_a_seed_says_what_is_sampled_at_a_position_and_nothing_of_a_greedy_answer() -> None:
    def said(seed: int, temperature: float) -> list[int]:
        params = SamplingParams(max_new_tokens=1, temperature=temperature, seed=seed)
        return [LAW.choose(row(params, position), 7).token_id for position in range(50)]

    assert said(1, 1.0) == said(1, 1.0)
    assert said(1, 1.0) != said(2, 1.0)
    assert said(1, 0.0) == said(2, 0.0)


def test_the_likeliest_is_sampled_half_of_the_time() -> None:
    likeliest = LAW.choose(row(), 7).token_id
    params = SamplingParams(max_new_tokens=1, seed=5)
    sampled = Counter(LAW.choose(row(params, position), 7).token_id for position in range(4000))
    assert sampled[likeliest] / 4000 == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_end_as_often_as_configured(temperature: float) -> None:
    law = TokenLaw(LETTERS, END_ID, 0.1)
    params = SamplingParams(max_new_tokens=1, temperature=temperature)
    ended = sum(law.choose(row(params, history), history).token_id == END_ID for history in range(4000))
    assert ended / 4000 == pytest.approx(0.1, abs=0.02)


def test_an_end_that_is_banned_does_not_come() -> None:
    law = TokenLaw(LETTERS, END_ID, 1.0)
    assert law.choose(row(), 3).token_id == END_ID
    assert law.choose(row(banned_token_ids=(END_ID,)), 3).token_id in LETTERS


@given(HISTORIES, st.sets(st.integers(0, NUM_TOKENS - 1), min_size=1, max_size=40))
def test_a_constraint_is_kept_to(history: int, allowed: set[int]) -> None:
    mask = pack(sorted(allowed), NUM_TOKENS)
    chosen = LAW.choose(row(allowed=mask), history).token_id
    assert chosen in allowed
    assert END_ID not in allowed or chosen == END_ID


def test_a_token_that_is_given_has_a_log_probability_of_its_own() -> None:
    params = SamplingParams(max_new_tokens=1, prompt_logprobs=2)
    given_tokens = [LAW.choose(row(params, given_token_id=token_id), 9) for token_id in (5, 6)]
    assert [token.token_id for token in given_tokens] == [5, 6]
    found = [token.logprobs for token in given_tokens]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].logprob != found[1].logprob
    assert max(each.logprob for each in found if each) < 0
    assert len(found[0].top) == 2
