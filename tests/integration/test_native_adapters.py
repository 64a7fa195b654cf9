"""Adapters in native code: what they add is what the changed weights would give, for their own rows and no others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hicache.tiers.device import DevicePool
from tests.integration.flat_batches import executor_of
from tests.integration.test_native_forward import VOCABULARY, model_of, paths_of, sampling
from tests.native_kernels import RUNNABLE, require_kernels, torch_threads
from tests.property.attention_trees import batch_of
from worker.batch import BASE_MODEL, Batch
from worker.lora.targets import linear_targets
from worker.lora.weights import AdapterWeights, LowRank
from worker.model.choosing import layer_shapes
from worker.model.native_forward import NativeModel
from worker.model.plain_decoder import plain_decoder
from worker.model.probe import probe
from worker.native.library import NumberFormat

torch.set_num_threads(1)
pytestmark = pytest.mark.skipif(not RUNNABLE, reason="there are no kernels for this processor")
NUM_SLOTS = 1_024
EVERYTHING = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def adapter_of(
    model: PreTrainedModel, rank: int, modules: Sequence[str] = EVERYTHING, seed: int = 0, scale: float = 0.5
) -> AdapterWeights:
    """Random weights of the size of the model's own; of each module another rank, up to `rank`."""
    generator = torch.Generator().manual_seed(seed)
    parts: dict[str, LowRank] = {}
    for number, (path, shape) in enumerate(linear_targets(model).items()):
        if path.rpartition(".")[2] not in modules:
            continue
        size = max(1, rank - number % 3)
        down = torch.randn(size, shape.in_features, generator=generator) / shape.in_features**0.5
        up = torch.randn(shape.out_features, size, generator=generator)
        parts[path] = LowRank(down.to(model.dtype), up.to(model.dtype), scale)
    return AdapterWeights(f"{seed}", parts)


def merged(model_name: str, adapter: AdapterWeights) -> PreTrainedModel:
    """The model with the adapter's products in its weights."""
    model = model_of(model_name)
    modules = dict(model.named_modules())
    for path, part in adapter.modules.items():
        weight = modules[path].weight
        assert isinstance(weight, Tensor)
        weight.add_(part.scale * part.up @ part.down)
    return model


class Places:
    """A native forward pass and adapters at its places, in their order."""

    def __init__(self, model: PreTrainedModel, adapters: Sequence[AdapterWeights]) -> None:
        probed = probe(model)
        self.model = NativeModel(plain_decoder(model, probed, require_kernels(), threads=1))
        self.bank = self.model.bank()
        for place, adapter in enumerate(adapters):
            self.bank.put(place, adapter)
        self.pool = DevicePool(layer_shapes(probed), NUM_SLOTS, model.dtype, model.device)
        self.forward = self.model.over(self.pool)

    def logits(self, batch: Batch, places: Sequence[int] | None) -> Tensor:
        adapters = None if places is None else np.array(places, dtype=np.int32)
        return self.forward.logits(replace(batch, adapters=adapters))


def prefills(lengths: Sequence[int]) -> Batch:
    """Whole prompts, every row of which samples."""
    batch = batch_of(paths_of(lengths, NUM_SLOTS), lengths)
    return sampling(batch, range(batch.num_tokens))


def alone(batch: Batch, index: int) -> Batch:
    """One sequence of a batch of whole prompts."""
    rows = slice(int(batch.qo_indptr[index]), int(batch.qo_indptr[index + 1]))
    size = rows.stop - rows.start
    return Batch(
        batch.token_ids[rows],
        batch.positions[rows],
        batch.out_slots[rows],
        np.array([0, size], np.int32),
        np.array([0, size], np.int32),
        batch.out_slots[rows],
        tuple(replace(batch.samples[row], row=row - rows.start) for row in range(rows.start, rows.stop)),
    )


CASES: Mapping[str, tuple[str, int, Sequence[str]]] = {
    "all modules": ("llama", 8, EVERYTHING),
    "rank 1": ("llama", 1, EVERYTHING),
    "a rank beyond a panel": ("llama", 37, EVERYTHING),
    "queries and values": ("llama", 6, ("q_proj", "v_proj")),
    "keys only": ("llama", 4, ("k_proj",)),
    "the way out only": ("llama", 4, ("o_proj",)),
    "ups only": ("llama", 4, ("up_proj",)),
    "down only": ("llama", 4, ("down_proj",)),
    "odd sizes": ("odd sizes", 5, EVERYTHING),
    "biases everywhere": ("biases everywhere", 5, EVERYTHING),
    "granite's multipliers": ("granite", 4, EVERYTHING),
    "norms of heads": ("qwen3", 4, EVERYTHING),
    "windows": ("mistral", 4, EVERYTHING),
}


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_computes_what_the_model_with_its_product_in_the_weights_does(case: str) -> None:
    name, rank, modules = CASES[case]
    adapter = adapter_of(model_of(name), rank, modules)
    batch = prefills([40, 3, 13])
    found = Places(model_of(name), [adapter]).logits(batch, [0, 0, 0])
    expected = executor_of(merged(name, adapter), NUM_SLOTS).logits(batch)
    base = executor_of(model_of(name), NUM_SLOTS).logits(batch)
    assert (found - expected).norm() <= 1e-4 * expected.norm()
    assert (base - expected).norm() > 0.05 * expected.norm(), "the adapter changes nothing"


def test_in_a_batch_of_base_and_adapters_each_row_has_the_bits_that_it_has_alone() -> None:
    model = model_of("llama")
    adapters = [adapter_of(model, rank, seed=rank) for rank in (3, 16, 8)]
    adapters.append(adapter_of(model, 5, ("q_proj", "down_proj"), seed=4))
    places = [2, BASE_MODEL, 0, 0, 3, 1, BASE_MODEL]
    batch = prefills([30, 7, 1, 14, 26, 2, 5])
    together = Places(model_of("llama"), adapters).logits(batch, places)
    for index, place in enumerate(places):
        single = Places(model_of("llama"), adapters).logits(alone(batch, index), [place])
        assert torch.equal(together[batch.qo_indptr[index] : batch.qo_indptr[index + 1]], single), index


def test_rows_without_an_adapter_have_the_bits_of_a_batch_that_knows_none() -> None:
    model = model_of("qwen2")
    computed_by = Places(model, [adapter_of(model_of("qwen2"), 8)])
    batch = prefills([9, 20])
    plain = computed_by.logits(batch, None)
    assert torch.equal(computed_by.logits(batch, [BASE_MODEL, BASE_MODEL]), plain)
    assert torch.equal(computed_by.logits(batch, [0, BASE_MODEL])[9:], plain[9:])


@pytest.mark.parametrize("threads", [2, 5])
def test_the_number_of_threads_changes_no_bit(threads: int) -> None:
    adapters = [adapter_of(model_of("llama"), rank, seed=rank) for rank in (4, 9)]
    batch = prefills([120, 1, 1, 33])
    places = [0, 1, BASE_MODEL, 1]
    single = Places(model_of("llama"), adapters).logits(batch, places)
    with torch_threads(threads):
        assert torch.equal(Places(model_of("llama"), adapters).logits(batch, places), single)


def test_few_rows_that_sample_have_the_bits_of_all_that_do() -> None:
    adapters = [adapter_of(model_of("llama"), rank, seed=rank) for rank in (4, 9)]
    batch = prefills([20, 3, 11])
    everything = Places(model_of("llama"), adapters).logits(batch, [1, BASE_MODEL, 0])
    rows = [33, 0, 22, 21, 22]
    few = replace(batch, samples=tuple(replace(batch.samples[0], row=row) for row in rows))
    assert torch.equal(Places(model_of("llama"), adapters).logits(few, [1, BASE_MODEL, 0]), everything[rows])


def test_a_place_that_is_given_away_computes_with_its_new_adapter() -> None:
    model = model_of("llama")
    one, other = (adapter_of(model, 6, seed=seed) for seed in (1, 2))
    computed_by = Places(model_of("llama"), [one])
    batch = prefills([12])
    first = computed_by.logits(batch, [0])
    computed_by.bank.put(0, other)
    second = computed_by.logits(batch, [0])
    assert not torch.equal(first, second)
    assert torch.equal(second, Places(model_of("llama"), [other]).logits(batch, [0]))


def test_a_batch_that_names_an_empty_place_is_refused() -> None:
    computed_by = Places(model_of("llama"), [adapter_of(model_of("llama"), 4)])
    computed_by.bank.clear(0)
    computed_by.bank.clear(0)
    with pytest.raises(KeyError):
        computed_by.logits(prefills([4]), [0])


def test_bfloat16_comes_close_to_float32() -> None:
    if not require_kernels().has_format(NumberFormat.BFLOAT16):
        pytest.skip("this processor has no bfloat16 arithmetic")
    adapter = adapter_of(model_of("llama"), 7)
    batch = prefills([25, 14])
    exact = Places(model_of("llama"), [adapter]).logits(batch, [0, 0])
    parts = {
        path: LowRank(part.down.bfloat16(), part.up.bfloat16(), part.scale) for path, part in adapter.modules.items()
    }
    rounded = Places(model_of("llama").bfloat16(), [AdapterWeights("r", parts)]).logits(batch, [0, 0])
    assert rounded.shape == (39, VOCABULARY)
    assert (rounded - exact).norm() < 0.05 * exact.norm()
