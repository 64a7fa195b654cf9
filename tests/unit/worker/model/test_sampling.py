import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from tests.unit.worker.model.sampling_reference import acceptable, distribution, row
from worker.batch import SampleRow, SamplingParams
from worker.engine.constraints import pack
from worker.model.penalties import penalised
from worker.model.randomness import uniform
from worker.model.sampling import CANDIDATES, sample

torch.set_num_threads(1)

GREEDY = SamplingParams(max_new_tokens=1, temperature=0.0)
PLAIN = SamplingParams(max_new_tokens=1)


def tokens(logits: torch.Tensor, rows: list[SampleRow]) -> list[int]:
    return [sampled.token_id for sampled in sample(logits, rows)]


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        max_new_tokens=1,
        temperature=draw(st.sampled_from([0.0, 0.2, 0.7, 1.0, 1.9, 5.0])),
        top_k=draw(st.sampled_from([0, 1, 2, 5, CANDIDATES - 1, CANDIDATES, CANDIDATES + 1, 5000])),
        top_p=draw(st.sampled_from([1.0, 0.9731, 0.5113, 0.0871, 0.0])),
        min_p=draw(st.sampled_from([0.0, 0.0131, 0.317, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.6])),
        presence_penalty=draw(st.sampled_from([0.0, 0.7, -1.1])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.45, -0.3])),
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
    )


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, list[SampleRow]]:
    vocab_size = draw(st.sampled_from([2, 7, CANDIDATES, CANDIDATES + 1, 700]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.02, 1.0, 6.0]))
    # Rounding makes equal logits common.
    logits = torch.from_numpy(np.round(rng.normal(size=(draw(st.integers(1, 6)), vocab_size)) * spread, 2)).float()
    token = st.integers(0, vocab_size - 1)
    rows = [
        row(
            draw(params()),
            position=draw(st.integers(0, 100_000)),
            prompt_token_ids=np.array(draw(st.lists(token, max_size=5)), np.int32),
            output_token_ids=draw(st.lists(token, max_size=8)),
            **draw(limits(vocab_size)),
        )
        for _ in range(len(logits))
    ]
    return logits, rows


def limits(vocab_size: int) -> st.SearchStrategy[dict[str, Any]]:
    """What may not be sampled, or may; something is left."""
    token = st.integers(0, vocab_size - 1)
    return st.one_of(
        st.lists(token, max_size=1).map(lambda banned: {"banned_token_ids": tuple(banned)}),
        st.lists(token, min_size=1, unique=True).map(lambda allowed: {"allowed": pack(allowed, vocab_size)}),
        st.lists(token, min_size=2, unique=True).map(
            lambda allowed: {"allowed": pack(allowed, vocab_size), "banned_token_ids": tuple(allowed[:1])}
        ),
    )


@settings(max_examples=200)
@given(batch=batches())
def test_every_combination_of_parameters_chooses_what_the_reference_chooses(
    batch: tuple[torch.Tensor, list[SampleRow]],
) -> None:
    logits, rows = batch
    for chosen, wanted, values in zip(tokens(logits, rows), rows, logits.double().numpy(), strict=True):
        assert chosen in acceptable(values, wanted)


@settings(max_examples=100)
@given(batch=batches(), seed=st.integers(0, 2**32 - 1))
def test_a_choice_is_the_same_alone_and_in_any_batch(batch: tuple[torch.Tensor, list[SampleRow]], seed: int) -> None:
    logits, rows = batch
    alone = [tokens(logits[index : index + 1], [wanted])[0] for index, wanted in enumerate(rows)]
    shuffled = np.random.default_rng(seed).permutation(len(rows))
    assert tokens(logits, rows) == alone
    assert tokens(logits[shuffled.tolist()], [rows[i] for i in shuffled]) == [alone[i] for i in shuffled]


@pytest.mark.parametrize(
    "wanted",
    [
        PLAIN,
        replace(PLAIN, temperature=0.4),
        replace(PLAIN, top_k=5),
        replace(PLAIN, top_p=0.8, temperature=1.5),
        replace(PLAIN, min_p=0.15),
        replace(PLAIN, top_k=9, top_p=0.9, min_p=0.05, temperature=2.0),
    ],
    ids=["plain", "cold", "top-k", "top-p", "min-p", "all"],
)
def test_sampled_frequencies_follow_the_distribution(wanted: SamplingParams) -> None:
    draws = 20_000
    logits = torch.from_numpy(np.random.default_rng(5).normal(size=12) * 2).float()
    ids, weights = distribution(logits.double().numpy(), wanted)
    rows = [row(replace(wanted, seed=seed // 100), position=seed % 100) for seed in range(draws)]
    counts = np.bincount(tokens(logits.expand(draws, -1), rows), minlength=12)[ids]
    assert counts[weights == 0].sum() == 0
    expected = weights[weights > 0] * draws
    chi_square = float(((counts[weights > 0] - expected) ** 2 / expected).sum())
    # Mean n, standard deviation sqrt(2 n), for n degrees of freedom: five deviations are beyond chance.
    freedom = len(expected) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom) + 5


def test_uniform_numbers_are_uniform_over_seeds_and_over_positions() -> None:
    for numbers in ([uniform(seed, 7) for seed in range(20_000)], [uniform(7, place) for place in range(20_000)]):
        counts, _ = np.histogram(numbers, bins=50, range=(0.0, 1.0))
        assert float(((counts - 400) ** 2 / 400).sum()) < 49 + 5 * math.sqrt(98)
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_a_uniform_number_depends_on_nothing_but_seed_and_position() -> None:
    assert uniform(3, 4) == uniform(3, 4)
    assert len({uniform(3, 4), uniform(4, 3), uniform(3, 5), uniform(-3, 4)}) == 4
    # Pinned: another worker, another version must draw the same.
    assert uniform(42, 17) == 0.08771868863602217


def test_greedy_takes_the_smaller_id_among_equals() -> None:
    assert tokens(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), [row(GREEDY)]) == [1]


def test_top_k_keeps_all_equals_at_its_border() -> None:
    logits = torch.tensor([[5.0, 1.0, 5.0, 5.0, 0.0]]).expand(300, -1)
    rows = [row(replace(PLAIN, top_k=2, seed=seed)) for seed in range(300)]
    assert set(tokens(logits, rows)) == {0, 2, 3}


def test_equals_beyond_the_candidates_are_sampled_too() -> None:
    vocab_size = 3 * CANDIDATES
    rows = [row(replace(PLAIN, top_k=2, seed=seed)) for seed in range(500)]
    chosen = tokens(torch.zeros(500, vocab_size), rows)
    assert max(chosen) >= 2 * CANDIDATES
    assert min(chosen) < CANDIDATES


def test_top_p_counts_the_mass_of_all_that_top_k_keeps_beyond_the_candidates() -> None:
    """The candidates alone hold 2/3 of what top_k keeps: taking that for the total would cut top_p short."""
    vocab_size = CANDIDATES * 3 // 2
    wanted = replace(PLAIN, top_k=vocab_size, top_p=0.6)
    logits = -torch.arange(vocab_size) * 1e-4
    rows = [row(replace(wanted, seed=seed)) for seed in range(1000)]
    _, weights = distribution(logits.double().numpy(), wanted)
    assert max(tokens(logits.expand(1000, -1), rows)) == pytest.approx(np.count_nonzero(weights), abs=4)


def test_a_tiny_temperature_is_greedy_and_no_nan() -> None:
    logits = torch.tensor([[1e4, 1e4 - 1, -1e4]])
    assert tokens(logits, [row(replace(PLAIN, temperature=1e-30))]) == [0]


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
@pytest.mark.parametrize("repetition_penalty", [1e-38, 1e38])
def test_an_extreme_penalty_still_chooses_a_token_of_the_vocabulary(
    filters: dict[str, Any], repetition_penalty: float
) -> None:
    logits = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0)) * 4
    wanted = SamplingParams(max_new_tokens=1, repetition_penalty=repetition_penalty, seed=3, **filters)
    row = SampleRow(0, wanted, 100, np.arange(100, dtype=np.int32), [], banned_token_ids=(5,))

    (token,) = tokens(logits, [row])

    assert 0 <= token < 1000
    assert token != 5


def test_logits_that_are_no_numbers_still_choose_a_token_of_the_vocabulary() -> None:
    for wanted in (SamplingParams(max_new_tokens=1), SamplingParams(max_new_tokens=1, top_p=0.9)):
        row = SampleRow(0, wanted, 1, np.arange(1, dtype=np.int32), [])
        (token,) = tokens(torch.full((1, 1000), float("nan")), [row])
        assert 0 <= token < 1000


def test_a_banned_token_is_never_chosen_whatever_its_logit() -> None:
    logits = torch.tensor([[9.0, 8.0, 7.0]]).expand(3, -1)
    rows = [row(wanted, banned_token_ids=(0, 1)) for wanted in (GREEDY, PLAIN, replace(PLAIN, top_k=1))]
    assert tokens(logits, rows) == [2, 2, 2]


def test_logits_are_left_as_they_were() -> None:
    logits = torch.tensor([[9.0, 8.0, 7.0]])
    sample(logits, [row(replace(PLAIN, repetition_penalty=2.0), output_token_ids=[0], banned_token_ids=(1,))])
    assert logits.tolist() == [[9.0, 8.0, 7.0]]


def test_logprobs_are_those_of_the_model_whatever_the_sampling_parameters() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, 1.0]])
    exact = (logits.double() - torch.logsumexp(logits.double(), dim=-1)).tolist()[0]
    wanted = SamplingParams(max_new_tokens=1, temperature=0.3, top_k=2, repetition_penalty=1.5, logprobs=3)
    [sampled] = sample(logits, [row(wanted, output_token_ids=[0], banned_token_ids=(0,))])
    assert sampled.logprobs is not None
    assert sampled.logprobs.logprob == pytest.approx(exact[sampled.token_id], abs=1e-6)
    assert [token for token, _ in sampled.logprobs.top] == [0, 1, 3]
    assert [value for _, value in sampled.logprobs.top] == pytest.approx([exact[0], exact[1], exact[3]], abs=1e-6)


def test_only_rows_that_ask_get_logprobs_and_each_as_many_as_it_asks_for() -> None:
    rows = [row(replace(PLAIN, logprobs=wanted)) for wanted in (None, 0, 2, 99)]
    found = [sampled.logprobs for sampled in sample(torch.zeros(4, 5), rows)]
    assert found[0] is None
    assert [len(logprobs.top) for logprobs in found[1:] if logprobs is not None] == [0, 2, 5]


def test_no_rows_sample_nothing() -> None:
    assert sample(torch.zeros(0, 5), []) == []


def test_the_repetition_penalty_is_that_of_transformers() -> None:
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.normal(size=(1, 50)))
    prompt, output = rng.integers(0, 50, 12), rng.integers(0, 50, 8)
    theirs = RepetitionPenaltyLogitsProcessor(1.7)(torch.from_numpy(np.concatenate([prompt, output]))[None], logits)
    wanted = row(
        replace(PLAIN, repetition_penalty=1.7),
        prompt_token_ids=prompt.astype(np.int32),
        output_token_ids=output.tolist(),
    )
    torch.testing.assert_close(penalised(logits, [wanted]), theirs)


def test_a_constraint_lets_through_what_it_allows_and_nothing_else() -> None:
    logits = torch.randn(40, 700, generator=torch.Generator().manual_seed(1)) * 3
    allowed = [tuple(range(index, 700, 97)) for index in range(40)]
    kinds = [GREEDY, PLAIN, replace(PLAIN, top_k=50, top_p=0.9), replace(PLAIN, repetition_penalty=2.0)]
    rows = [
        row(replace(kinds[index % 4], seed=index), prompt_token_ids=np.array(tokens), allowed=pack(tokens, 700))
        for index, tokens in enumerate(allowed)
    ]
    assert all(token in among for token, among in zip(tokens(logits, rows), allowed, strict=True))


def test_a_constraint_that_leaves_one_token_decides_it_whatever_its_logit() -> None:
    logits = torch.zeros(1, 700)
    logits[0, 3], logits[0, 4] = -1e30, 1e30
    for params in (GREEDY, PLAIN, replace(PLAIN, top_p=0.1), replace(PLAIN, temperature=0.001, top_k=3)):
        assert tokens(logits, [row(params, allowed=pack([3], 700))]) == [3]


def test_log_probabilities_under_a_constraint_are_the_models_own() -> None:
    logits = torch.randn(1, 700)
    (sampled,) = sample(logits, [row(replace(GREEDY, logprobs=2), allowed=pack([5], 700))])
    expected = torch.log_softmax(logits, dim=-1)[0]
    assert sampled.logprobs is not None
    assert sampled.logprobs.logprob == pytest.approx(float(expected[5]))
    assert sampled.logprobs.top[0][0] == int(expected.argmax())


def test_given_tokens_get_their_log_probabilities_and_change_no_choice() -> None:
    logits = torch.randn(3, 700)
    wanted = row(replace(PLAIN, seed=7, repetition_penalty=1.5), position=9, output_token_ids=[1, 2])
    scored = [row(replace(PLAIN, prompt_logprobs=3), given_token_id=token) for token in (42, 699)]
    first, chosen, last = sample(logits, [scored[0], wanted, scored[1]])
    assert chosen == sample(logits[1:2], [wanted])[0]
    for index, token, sampled in ((0, 42, first), (2, 699, last)):
        expected = torch.log_softmax(logits[index], dim=-1)
        assert sampled.token_id == token
        assert sampled.logprobs is not None
        assert sampled.logprobs.logprob == pytest.approx(float(expected[token]))
        assert [entry[0] for entry in sampled.logprobs.top] == expected.topk(3).indices.tolist()
