"""Rows of a step get what their own adapter adds, whatever stands beside them; all against the formula."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from worker.batch import BASE_MODEL, Batch, Int32Array
from worker.lora.torch_bank import TorchAdapterBank
from worker.lora.weights import AdapterWeights, LowRank

torch.set_num_threads(1)
BASE = BASE_MODEL
LONG = 64  # rows with two products of their own


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 24)
        self.second = nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        return out


def low_rank(inputs: int, outputs: int, rank: int, seed: int) -> LowRank:
    generator = torch.Generator().manual_seed(seed)
    return LowRank(
        0.2 * torch.randn(rank, inputs, generator=generator),
        0.2 * torch.randn(outputs, rank, generator=generator),
        0.3 + seed,
    )


ADAPTERS = (
    AdapterWeights("a", {"first": low_rank(16, 24, 4, 1)}),
    AdapterWeights("b", {"first": low_rank(16, 24, 2, 2), "second": low_rank(24, 16, 7, 3)}),
    AdapterWeights("c", {"second": low_rank(24, 16, 1, 4)}),
    AdapterWeights("d", {"first": low_rank(16, 24, 4, 5), "second": low_rank(24, 16, 4, 6)}),
)


def batch_of(sequences: Sequence[tuple[int, int]]) -> Batch:
    """Sequences of so many rows, with the adapter at that place."""
    borders: Int32Array = np.cumsum([0, *(size for size, _ in sequences)]).astype(np.int32)
    empty = np.zeros(int(borders[-1]), np.int32)
    places = np.array([place for _, place in sequences], np.int32)
    return Batch(empty, empty, empty, borders, borders, empty, (), adapters=places)


def filled_bank(model: Model) -> TorchAdapterBank:
    bank = TorchAdapterBank(model, ["first", "second"], torch.float32, torch.device("cpu"))
    for place, adapter in enumerate(ADAPTERS):
        bank.put(place, adapter)
    return bank


def computed(bank: TorchAdapterBank, model: Model, batch: Batch, x: Tensor) -> Tensor:
    with torch.inference_mode(), bank.adding(batch, x.shape[-2]):
        out: Tensor = model(x)
    return out


def by_formula(model: Model, batch: Batch, x: Tensor) -> Tensor:
    with torch.inference_mode():
        assert batch.adapters is not None
        out: Tensor = model(x)
        for index, place in enumerate(batch.adapters.tolist()):
            rows = slice(batch.qo_indptr[index], batch.qo_indptr[index + 1])
            if place != BASE:
                modules = ADAPTERS[place].modules
                inner = plus_delta(model.first, modules.get("first"), x[0, rows])
                out[0, rows] = plus_delta(model.second, modules.get("second"), inner)
    return out


def plus_delta(layer: nn.Linear, module: LowRank | None, x: Tensor) -> Tensor:
    out: Tensor = layer(x)
    return out if module is None else out + module.scale * (x @ module.down.T) @ module.up.T


@pytest.mark.parametrize(
    "sequences",
    [
        [(5, 0)],
        [(1, BASE), (1, 0)],
        [(1, 0), (1, 1), (1, 2), (1, 3)],
        [(1, 0), (1, 1), (1, BASE), (1, 3)],
        [(2, BASE), (3, 2), (1, BASE), (4, 2), (1, 1)],
        [(1, 3), (1, 3), (1, 1), (2, 1), (9, BASE)],
        [(LONG, 1), (1, 0), (1, BASE), (LONG + 5, 3), (2, 2)],
        [(LONG, 1), (3, 0)],
        [(3, 0), (LONG, BASE), (3, 1)],
        [(0, 0), (3, 1)],
        [(2, 2), (2, 2)],
    ],
)
def test_each_row_gets_what_its_own_adapter_adds(sequences: list[tuple[int, int]]) -> None:
    model = Model()
    batch = batch_of(sequences)
    x = torch.randn(1, batch.num_tokens, 16, generator=torch.Generator().manual_seed(7))
    out = computed(filled_bank(model), model, batch, x)
    torch.testing.assert_close(out, by_formula(model, batch, x), rtol=1e-4, atol=1e-4)


def test_rows_of_the_base_model_keep_their_bits() -> None:
    model = Model()
    batch = batch_of([(1, 0), (3, BASE), (1, 1), (LONG, 2), (2, BASE)])
    x = torch.randn(1, batch.num_tokens, 16)
    out = computed(filled_bank(model), model, batch, x)
    plain = model(x)
    assert torch.equal(out[0, 1:4], plain[0, 1:4])
    assert torch.equal(out[0, -2:], plain[0, -2:])


def test_an_adapter_that_computes_infinities_spoils_no_row_but_its_own() -> None:
    model, batch = Model(), batch_of([(2, 0), (3, 1), (1, BASE), (2, 3)])
    x = torch.randn(batch.num_tokens, 16)
    alone = computed(filled_bank(model), model, batch_of([(2, 0), (3, BASE), (1, BASE), (2, 3)]), x)
    bank = filled_bank(model)
    huge = LowRank(torch.full((2, 16), 3e38), torch.full((24, 2), 3e38), 9.0)
    bank.put(1, AdapterWeights("huge", {"first": huge}))
    out = computed(bank, model, batch, x)
    assert not out[2:5].isfinite().any()
    others = [0, 1, 5, 6, 7]
    torch.testing.assert_close(out[others], alone[others])


def test_padding_behind_the_rows_is_left_alone() -> None:
    model = Model()
    batch = batch_of([(1, 0), (1, 1)])
    x = torch.randn(1, 4, 16)
    out = computed(filled_bank(model), model, batch, x)
    assert torch.equal(out[0, 2:], model(x)[0, 2:])


def test_rows_without_a_leading_dimension_are_the_same_rows() -> None:
    model = Model()
    batch = batch_of([(2, 0), (1, 3)])
    x = torch.randn(1, 3, 16)
    bank = filled_bank(model)
    torch.testing.assert_close(computed(bank, model, batch, x[0]), computed(bank, model, batch, x)[0])


def test_after_a_step_the_model_is_the_base_model_again() -> None:
    model = Model()
    x = torch.randn(1, 2, 16)
    plain = model(x)
    computed(filled_bank(model), model, batch_of([(1, 0), (1, 1)]), x)
    assert torch.equal(model(x), plain)


def test_after_a_step_that_failed_the_model_is_the_base_model_again() -> None:
    model = Model()
    x = torch.randn(1, 2, 16)
    plain = model(x)
    with pytest.raises(RuntimeError):
        computed(filled_bank(model), model, batch_of([(1, 0), (1, 1)]), torch.randn(1, 2, 15))
    assert torch.equal(model(x), plain)


def test_a_step_of_base_rows_alone_puts_hooks_nowhere() -> None:
    model = Model()
    bank = filled_bank(model)
    with bank.adding(batch_of([(2, BASE), (1, BASE)]), 3):
        assert all(not layer._forward_hooks for layer in (model.first, model.second))


def test_a_place_that_is_filled_anew_computes_with_the_later_adapter() -> None:
    """Also where several were stacked before."""
    model = Model()
    bank = filled_bank(model)
    batch, x = batch_of([(1, 0), (1, 1)]), torch.randn(1, 2, 16)
    computed(bank, model, batch, x)
    bank.put(1, ADAPTERS[3])
    expected = by_formula(model, batch_of([(1, 0), (1, 3)]), x)
    torch.testing.assert_close(computed(bank, model, batch, x), expected, rtol=1e-4, atol=1e-4)


def test_a_step_with_some_of_the_last_steps_adapters_gets_those_only() -> None:
    model = Model()
    bank = filled_bank(model)
    x = torch.randn(1, 4, 16)
    for sequences in ([(1, 0), (1, 1), (1, 2), (1, 3)], [(1, 2), (2, 0), (1, BASE)], [(1, 3), (1, 1), (2, 0)]):
        batch = batch_of(sequences)
        torch.testing.assert_close(computed(bank, model, batch, x), by_formula(model, batch, x), rtol=1e-4, atol=1e-4)


def test_a_place_where_nothing_lies_is_an_error_and_not_the_base_model() -> None:
    model = Model()
    bank = filled_bank(model)
    bank.clear(2)
    with pytest.raises(KeyError):
        computed(bank, model, batch_of([(1, 2)]), torch.randn(1, 1, 16))


def test_clearing_twice_is_harmless() -> None:
    bank = filled_bank(Model())
    bank.clear(2)
    bank.clear(2)


def test_a_layer_that_sees_other_rows_than_the_steps_is_an_error() -> None:
    """An expert would: adding there would give rows to sequences at random."""
    model = Model()
    with pytest.raises(RuntimeError, match="sees 3 rows of 2"):
        with filled_bank(model).adding(batch_of([(2, 0)]), 2):
            model(torch.randn(1, 3, 16))


def test_a_layer_with_a_number_format_of_its_own_gets_weights_in_it() -> None:
    model = Model()
    model.second.double()
    bank = filled_bank(model)
    with torch.inference_mode(), bank.adding(batch_of([(1, 1), (1, 3)]), 2):
        assert model.second(torch.randn(1, 2, 24, dtype=torch.float64)).dtype == torch.float64
