"""Searches by blocks find what the plain functions find, whatever the length and however many are equal."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.model import blocks

torch.set_num_threads(1)

LENGTHS = (1, 31, 32, 255, 256, 257, 640, 2048, 4096)


@st.composite
def rows(draw: st.DrawFn) -> torch.Tensor:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Rounding makes equals common.
    values = np.round(rng.normal(size=(draw(st.integers(1, 4)), draw(st.sampled_from(LENGTHS)))), 1)
    values[rng.random(values.shape) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = -np.inf
    return torch.from_numpy(values).float()


@settings(max_examples=100)
@given(values=rows())
def test_the_largest_is_the_first_of_equals(values: torch.Tensor) -> None:
    assert blocks.argmax(values).tolist() == values.argmax(dim=-1).tolist()


@settings(max_examples=100)
@given(values=rows(), share=st.sampled_from([0.01, 0.03, 0.5, 1.0]))
def test_the_k_largest_are_those_of_topk_at_the_places_where_they_stand(values: torch.Tensor, share: float) -> None:
    k = max(1, int(share * values.shape[-1]))
    largest, places = blocks.topk(values, k)
    assert torch.equal(largest.sort(dim=-1).values, values.topk(k).values.sort(dim=-1).values)
    assert torch.equal(values.gather(1, places), largest)
    assert all(len(set(row)) == k for row in places.tolist())


@settings(max_examples=100)
@given(values=rows(), drawn=st.floats(0, 1, exclude_max=True))
def test_a_number_falls_where_it_does_in_the_whole_row(values: torch.Tensor, drawn: float) -> None:
    weights = values.exp()
    weights[weights[:, 0] == 0, 0] = 1.0
    cumulated = weights.double().cumsum(dim=-1)
    target = drawn * cumulated[:, -1:]
    for row, place in enumerate(blocks.inverse_cdf(weights, torch.full((len(weights), 1), drawn).double()).tolist()):
        assert weights[row, place] > 0
        slack = 1e-12 * float(cumulated[row, -1])
        assert float(cumulated[row, place]) >= float(target[row]) - slack
        assert float(cumulated[row, place] - weights[row, place]) <= float(target[row]) + slack


@pytest.mark.parametrize("length", LENGTHS)
def test_rows_of_no_numbers_give_places_inside(length: int) -> None:
    values = torch.full((2, length), float("nan"))
    assert blocks.argmax(values).tolist() == [0, 0]
    for place in blocks.inverse_cdf(values, torch.full((2, 1), 0.5).double()).tolist():
        assert 0 <= place < length
