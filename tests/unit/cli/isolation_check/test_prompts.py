import random
from collections.abc import Sequence

import pytest

from cli.isolation_check.prompts import Prompts, TooFewTokensError, vocabulary_of


def bytes_of(text: str) -> Sequence[int]:
    return list(text.encode())


def test_a_vocabulary_is_what_the_model_makes_of_words() -> None:
    vocabulary = vocabulary_of(bytes_of, 4096, random.Random(1))
    assert len(vocabulary) == len(set(vocabulary)) > 64
    assert set(vocabulary) <= set(range(256))


def test_no_text_is_longer_than_the_context() -> None:
    lengths: list[int] = []

    def tokens_of(text: str) -> Sequence[int]:
        lengths.append(len(text.encode()))
        return bytes_of(text)

    vocabulary_of(tokens_of, 200, random.Random(1))
    assert max(lengths) <= 200


def test_a_model_with_too_few_tokens_is_told() -> None:
    with pytest.raises(TooFewTokensError, match="have 1 different tokens; 64 are needed"):
        vocabulary_of(lambda text: [7], 4096, random.Random(1))


def test_no_two_prompts_begin_with_the_same_token_while_there_are_others() -> None:
    prompts = Prompts(range(100), 16, random.Random(1))
    made = [prompts.fresh() for _ in range(100)]
    assert len({prompt[0] for prompt in made}) == 100
    assert {len(prompt) for prompt in made} == {16}
    assert len(prompts.fresh(5)) == 5


@pytest.mark.parametrize(("size", "tokens"), [(64, 4), (500, 3), (50_000, 1)])
def test_few_tokens_meet_more_often_by_chance(size: int, tokens: int) -> None:
    prompts = Prompts(range(size), 16, random.Random(1))
    assert prompts.by_chance == tokens
    assert 1e6 / size ** (tokens + 1) < 1e-3


def test_two_runs_have_nothing_in_common() -> None:
    one, two = (Prompts(range(500), 16, random.SystemRandom()) for _ in range(2))
    assert one.nonce != two.nonce
    assert one.fresh() != two.fresh()
    assert one.name("scope") != two.name("scope")
