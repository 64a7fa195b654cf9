"""Plain decoders in native code say what transformers says, whatever their parts and sizes and the shape of a step."""

import gc
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hicache.tiers.device import DevicePool
from tests.integration.flat_batches import GREEDY, executor_of, generate_flat, generate_plain
from tests.integration.tiny_models import WINDOW, tiny_model
from tests.native_kernels import RUNNABLE, require_kernels
from tests.property.attention_trees import batch_of
from worker.batch import Batch, Int32Array, SampleRow
from worker.config import ModelConfig
from worker.model.choosing import forward_model, layer_shapes
from worker.model.executor import ModelExecutor
from worker.model.native_forward import NativeModel
from worker.model.plain_decoder import FAMILIES, plain_decoder
from worker.model.probe import probe
from worker.model.rotary import pin_rotary

torch.set_num_threads(1)
pytestmark = pytest.mark.skipif(not RUNNABLE, reason="there are no kernels for this processor")
NUM_NEW = 12
NUM_SLOTS = 1_024
VOCABULARY = 97


def scaled(rope_type: str, **settings: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 1e4, "factor": 4.0, **settings}}


# What a model has beside the tiny base: (family, settings), by the name of the test.
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "odd sizes": ("llama", {"intermediate_size": 44, "hidden_size": 36, "head_dim": 10, "num_key_value_heads": 1}),
    "one head for each": ("llama", {"num_key_value_heads": 4, "head_dim": 16}),
    "tied head": ("llama", {"tie_word_embeddings": True}),
    "biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True, "intermediate_size": 46}),
    "gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "another epsilon": ("llama", {"rms_norm_eps": 0.1}),
    "yarn": ("llama", scaled("yarn", original_max_position_embeddings=64)),
    "llama3": (
        "llama",
        scaled("llama3", original_max_position_embeddings=64, low_freq_factor=1.0, high_freq_factor=4.0),
    ),
    "linear": ("llama", scaled("linear")),
    "dynamic, pinned": ("llama", scaled("dynamic")),
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "qwen2": ("qwen2", {}),
    "qwen2 with windows": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW}),
    "qwen3": ("qwen3", {}),
    "qwen3 with windows": (
        "qwen3",
        {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 40, "attention_bias": True},
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 5, "no_rope_layer_interval": 2}),
    "smollm3 that rotates late": ("smollm3", {"no_rope_layers": [0, 1, 0]}),
    "smollm3 with windows": (
        "smollm3",
        {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": WINDOW,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "granite": (
        "granite",
        {"attention_multiplier": 0.2, "logits_scaling": 2.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.4},
    ),
}  # fmt: skip


def model_of(name: str) -> PreTrainedModel:
    """With biases and weights of norms that aren't what nobody would notice the absence of."""
    family, settings = MODELS[name]
    model = tiny_model(family, **settings)
    generator = torch.Generator().manual_seed(1)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias") or "norm" in parameter_name:
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    pin_rotary(model, 256)
    return model


def native_of(model: PreTrainedModel, num_slots: int = NUM_SLOTS) -> ModelExecutor:
    probed = probe(model)
    pool = DevicePool(layer_shapes(probed), num_slots, model.dtype, model.device)
    return ModelExecutor(NativeModel(plain_decoder(model, probed, require_kernels(), threads=1)), pool)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(1)
    shared = rng.integers(3, VOCABULARY, 11).tolist()
    return [shared + rng.integers(3, VOCABULARY, size).tolist() for size in (12, 1, 140, 5)]


def sampling(batch: Batch, rows: Sequence[int], seed: int = 3) -> Batch:
    """The same batch with random tokens, of which some rows sample."""
    token_ids = np.random.default_rng(seed).integers(0, VOCABULARY, batch.num_tokens).astype(np.int32)
    samples = tuple(SampleRow(row, GREEDY, 0, token_ids[:0], ()) for row in rows)
    fields = (batch.positions, batch.out_slots, batch.qo_indptr, batch.kv_indptr, batch.kv_indices)
    return Batch(token_ids, *fields, samples=samples)


def paths_of(lengths: Sequence[int], num_slots: int = NUM_SLOTS) -> list[Int32Array]:
    deck = np.random.default_rng(0).permutation(num_slots).astype(np.int32)
    return np.split(deck, np.cumsum(lengths))[: len(lengths)]


def filled(executor: ModelExecutor, seed: int = 0) -> ModelExecutor:
    """Something is in every slot, the same for every executor."""
    generator = torch.Generator().manual_seed(seed)
    for layer in range(len(executor.pool.layers)):
        for tensor in (executor.pool.key(layer), executor.pool.value(layer)):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return executor


def difference(one: Tensor, other: Tensor) -> float:
    """The largest, in standard deviations."""
    assert one.shape == other.shape
    return float((one - other).abs().max() / other.std())


def test_every_family_is_tested_here() -> None:
    assert {family for family, _ in MODELS.values()} == FAMILIES


@pytest.mark.parametrize("name", MODELS)
def test_native_code_generates_what_transformers_generates(name: str) -> None:
    model = model_of(name)
    expected = [generate_plain(model, prompt, NUM_NEW) for prompt in prompts()]
    executor = native_of(model)
    for chunk_tokens in (7, 64):
        got = generate_flat(
            executor, prompts(), NUM_NEW, chunk_tokens=chunk_tokens, num_slots=NUM_SLOTS, seed=chunk_tokens, shared=11
        )
        assert got == expected
    assert len({tuple(output) for output in expected}) > 1, "random weights that always say the same prove nothing"


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_what_is_written_to_slots_are_those_of_transformers(name: str) -> None:
    model = model_of(name)
    batch = batch_of(paths_of([50, 1, 200, 33]), [1, 1, 70, 33])
    batch = sampling(batch, rows=[0, 1, 5, 71, 72, 104])
    native, plain = filled(native_of(model)), filled(executor_of(model, NUM_SLOTS))
    assert difference(native.logits(batch), plain.logits(batch)) < 1e-4
    for layer in range(len(native.pool.layers)):
        torch.testing.assert_close(native.pool.key(layer), plain.pool.key(layer), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(native.pool.value(layer), plain.pool.value(layer), rtol=1e-3, atol=1e-4)


def test_a_step_in_which_nothing_samples_writes_keys_and_returns_nothing() -> None:
    executor = native_of(model_of("llama"), num_slots=8)
    batch = sampling(batch_of([np.array([7, 2], np.int32)], [2]), rows=[])
    assert executor.logits(batch).shape == (0, VOCABULARY)
    assert executor.run(batch) == []
    for layer in range(3):
        written = executor.pool.key(layer).abs().sum(dim=(1, 2)) > 0
        assert written.nonzero()[:, 0].tolist() == [2, 7]


@pytest.mark.parametrize(
    ("lengths", "num_rows", "rows"),
    [
        ([1], [1], [0]),
        ([600], [600], [*range(600)]),
        ([600], [600], [599]),
        ([600, 3], [400, 3], [2, 17, 401]),
        ([40], [40], [39, 3, 3, 0]),  # in any order, and a row that samples twice
        ([1] * 300, [1] * 300, [*range(300)]),
    ],
    ids=["one token", "all of 600", "the last of 600", "not the last of a chunk", "any order", "300 sequences"],
)
def test_any_rows_of_any_step_may_sample(lengths: list[int], num_rows: list[int], rows: list[int]) -> None:
    model = model_of("qwen2")
    batch = sampling(batch_of(paths_of(lengths), num_rows), rows)
    native, plain = filled(native_of(model)), filled(executor_of(model, NUM_SLOTS))
    got, expected = native.logits(batch), plain.logits(batch)
    assert difference(got, expected) < 1e-4
    assert got.dtype == torch.float32


def test_logits_are_a_tensor_of_their_own() -> None:
    executor = native_of(model_of("llama"))
    first_batch, second_batch = (sampling(batch_of(paths_of([9]), [9]), [8], seed) for seed in (1, 2))
    first = executor.logits(first_batch)
    kept = first.clone()
    assert not torch.equal(executor.logits(second_batch), first)
    assert torch.equal(first, kept)


@pytest.mark.parametrize("num_rows", [1, 40])
def test_a_context_of_twenty_thousand_tokens(num_rows: int) -> None:
    """Twenty spans. What was computed before lies in the pool, and is random."""
    model = tiny_model("llama", max_position_embeddings=32_768, num_hidden_layers=2)
    batch = batch_of(paths_of([20_000, 4_096], num_slots=24_100), [num_rows, 1])
    batch = sampling(batch, rows=[0, num_rows - 1, num_rows])
    native, plain = filled(native_of(model, 24_100)), filled(executor_of(model, 24_100))
    assert difference(native.logits(batch), plain.logits(batch)) < 1e-4


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize(
    "part", ["embed_tokens.weight", "layers.1.self_attn.k_proj.weight", "layers.0.mlp.up_proj.weight"]
)
def test_weights_that_are_no_numbers_end_a_step_all_the_same(part: str, value: float) -> None:
    model = model_of("llama")
    model.get_parameter(f"model.{part}").fill_(value)
    batch = sampling(batch_of(paths_of([150, 1]), [20, 1]), rows=[19, 20])
    assert native_of(model).logits(batch).shape == (2, VOCABULARY)


def test_a_sequence_that_is_no_number_leaves_its_neighbours_alone() -> None:
    executor = filled(native_of(model_of("llama")))
    shared, ill, well = paths_of([256, 30, 30])
    batch = sampling(batch_of([np.concatenate([shared, ill]), np.concatenate([shared, well])], [1, 1]), rows=[0, 1])
    expected = executor.logits(batch)
    for layer in range(3):
        executor.pool.key(layer)[ill[:-1].tolist()] = float("nan")
        executor.pool.value(layer)[ill[:-1].tolist()] = float("inf")
    got = executor.logits(batch)
    assert torch.equal(got[1], expected[1])
    assert not torch.equal(got[0], expected[0])


def test_two_pools_of_one_model_hold_different_things() -> None:
    """As an engine beside a self-check, or two engines in turn, would use it."""
    model = model_of("llama")
    probed = probe(model)
    computed_by = NativeModel(plain_decoder(model, probed, require_kernels(), threads=1))
    expected = [generate_plain(model, prompt, NUM_NEW) for prompt in prompts()[:2]]
    executors = [
        ModelExecutor(computed_by, DevicePool(layer_shapes(probed), size, torch.float32, torch.device("cpu")))
        for size in (64, 48)
    ]
    paths = [paths_of([len(p) + NUM_NEW], size)[0] for p, size in zip(prompts()[:2], (64, 48), strict=True)]
    texts, computed = [list(prompt) for prompt in prompts()[:2]], [0, 0]
    for step in range(2 * NUM_NEW):
        turn = step % 2
        text, path = texts[turn], paths[turn]
        batch = batch_of([path[: len(text)]], [len(text) - computed[turn]])
        row = SampleRow(batch.num_tokens - 1, GREEDY, len(text), np.array(text, np.int32), ())
        tokens = np.array(text[computed[turn] :], np.int32)
        fields = (batch.positions, batch.out_slots, batch.qo_indptr, batch.kv_indptr, batch.kv_indices)
        computed[turn] = len(text)
        text.append(executors[turn].run(Batch(tokens, *fields, samples=(row,)))[0].token_id)
    assert [text[len(prompt) :] for text, prompt in zip(texts, prompts(), strict=False)] == expected


def test_weights_are_kept_once() -> None:
    """What transformers built is gone when native code has packed it; nothing that is left refers to it."""
    require_kernels()
    model = tiny_model("llama", tie_word_embeddings=True)
    parts: list[Any] = [model, model.model.layers[1].mlp.up_proj.weight, model.get_input_embeddings().weight]
    watched = [weakref.ref(part) for part in parts]
    parts.clear()
    computed_by = forward_model(model, probe(model), ModelConfig(forward="native"))
    del model
    gc.collect()
    assert [each() for each in watched] == [None] * 3
    assert isinstance(computed_by, NativeModel)
