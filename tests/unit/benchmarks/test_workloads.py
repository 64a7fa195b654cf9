"""What the serving benchmark sends has exactly the sizes that its documentation names, and the same at each run."""

from itertools import pairwise

import pytest

from benchmarks.workloads import TITLES, WORKLOADS, Tokens, TokenText, Wave, shared_prefix

DOCUMENT = tuple(range(50_000))  # each token tells where it was cut


def played(name: str, seed: int | str = 0, scale: float = 1.0) -> list[Wave]:
    """All waves of a workload, answered with tokens that occur in no document."""
    waves = WORKLOADS[name].scaled(scale).waves(TokenText(DOCUMENT, seed), "acme")
    played = [next(waves)]
    while True:
        answers: list[Tokens] = [(-1,) * turn.max_new_tokens for turn in played[-1].turns]
        try:
            played.append(waves.send(answers))
        except StopIteration:
            return played


def shared_tokens(prompts: list[Tokens]) -> int:
    """The length of the longest prefix that all prompts share."""
    return next((i for i, column in enumerate(zip(*prompts, strict=False)) if len(set(column)) > 1), len(prompts[0]))


def test_each_workload_has_a_title() -> None:
    assert list(TITLES) == list(WORKLOADS) == ["w1", "w2", "w3", "w4", "w5", "w6"]


def test_w1_is_32_requests_behind_1500_tokens() -> None:
    (wave,) = played("w1")
    prompts = [turn.token_ids for turn in wave.turns]

    assert len(prompts) == 32
    assert shared_tokens(prompts) == 1500
    assert all(1510 <= len(prompt) <= 1560 for prompt in prompts)
    assert len({len(prompt) for prompt in prompts}) > 10
    assert {(turn.max_new_tokens, turn.temperature) for turn in wave.turns} == {(32, 0)}


def test_w2_asks_on_in_8_chats() -> None:
    waves = played("w2")

    assert [len(wave.turns) for wave in waves] == [8] * 6
    assert [len(wave.turns[0].token_ids) for wave in waves] == [512 + 120 + turn * (48 + 120) for turn in range(6)]
    assert shared_tokens([turn.token_ids for turn in waves[0].turns]) == 512
    for before, after in pairwise(waves):
        for asked, next_asked in zip(before.turns, after.turns, strict=True):
            history = asked.token_ids + (-1,) * 48
            assert next_asked.token_ids[: len(history)] == history


def test_w3_shares_nothing() -> None:
    (wave,) = played("w3")

    assert [len(turn.token_ids) for turn in wave.turns] == [512] * 16
    assert len({turn.token_ids[0] for turn in wave.turns}) == 16


def test_w4_comes_twice_with_another_end() -> None:
    cold, warm = played("w4")

    assert (cold.phase, warm.phase) == ("cold", "warm")
    (first,), (second,) = cold.turns, warm.turns
    assert len(first.token_ids) == len(second.token_ids) == 3900 + 196
    assert shared_tokens([first.token_ids, second.token_ids]) == 3900


def test_w5_samples_one_prompt_with_16_seeds() -> None:
    (wave,) = played("w5")

    assert len({turn.token_ids for turn in wave.turns}) == 1
    assert len(wave.turns[0].token_ids) == 1000
    assert {turn.seed for turn in wave.turns} == set(range(16))
    assert {(turn.max_new_tokens, turn.temperature) for turn in wave.turns} == {(64, 1)}


def test_w6_is_one_stream() -> None:
    (wave,) = played("w6")

    assert [(len(turn.token_ids), turn.max_new_tokens) for turn in wave.turns] == [(128, 64)]


@pytest.mark.parametrize("name", WORKLOADS)
def test_one_seed_gives_one_course_and_another_shares_no_prompt_with_it(name: str) -> None:
    assert played(name, "0/0") == played(name, "0/0")

    waves, other_waves = played(name, "0/0"), played(name, "0/1")
    starts, others = ({turn.token_ids[0] for wave in each for turn in wave.turns} for each in (waves, other_waves))
    assert starts.isdisjoint(others)


def test_scaled_sizes_are_smaller_and_never_vanish() -> None:
    (wave,) = played("w5", scale=0.01)

    assert [len(turn.token_ids) for turn in wave.turns] == [10]
    assert wave.turns[0].max_new_tokens == 1
    assert wave.turns[0].temperature == 1


def test_no_two_cuts_start_at_the_same_place() -> None:
    text = TokenText(DOCUMENT[:100], seed=0)

    assert len({text.cut(91)[0] for _ in range(10)}) == 10
    with pytest.raises(ValueError, match="100 tokens has no further 91"):
        text.cut(91)


def test_tenants_come_in_turn_each_behind_its_own_prompt() -> None:
    turns = shared_prefix(TokenText(DOCUMENT, 0), ("a", "b"), num_requests=6, prefix_tokens=50, max_new_tokens=3)

    assert [turn.tenant for turn in turns] == ["a", "b"] * 3
    assert shared_tokens([turn.token_ids for turn in turns]) == 0
    assert shared_tokens([turn.token_ids for turn in turns[::2]]) == 50
