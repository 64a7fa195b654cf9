"""What PEFT computes with an adapter is what this worker computes, as transformers defines it and in native code."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.integration.flat_batches import GREEDY, generate_flat
from tests.integration.peft_adapters import (
    chosen_executor_with,
    executor_with,
    logits_of,
    native_executor_with,
    read_tiny_adapter,
    save_adapter,
)
from tests.native_kernels import RUNNABLE
from worker.batch import BASE_MODEL, Batch, Int32Array, SampleRow
from worker.lora.weights import AdapterWeights
from worker.model.executor import ModelExecutor

torch.set_num_threads(1)
ExecutorOf = Callable[[Sequence[AdapterWeights], str, int], ModelExecutor]
TOLERANCE = 1e-4  # of the largest logit
NUM_NEW = 12

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
KINDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"target_modules": ["q_proj", "v_proj"]},
    "rslora": {"target_modules": ["q_proj", "down_proj"], "use_rslora": True, "r": 8},
    "all-linear": {"target_modules": "all-linear"},
    "regex": {"target_modules": r".*layers\.[02]\..*(up|o)_proj"},
    "patterns": {
        "target_modules": ATTENTION,
        "rank_pattern": {"q_proj": 2, r"layers\.1\..*(k|v|o)_proj": 7},
        "alpha_pattern": {r"layers\.(0|2)\.self_attn\.q_proj": 11, "k_proj": 0.5, r"(k|o)_proj": 3},
    },
    "some-layers": {"target_modules": ATTENTION, "layers_to_transform": [0, 2], "layers_pattern": "layers"},
    "excluding": {"target_modules": "all-linear", "exclude_modules": ["down_proj", "k_proj"]},
    "orthogonal": {"target_modules": ATTENTION, "init_lora_weights": "orthogonal"},
}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {"target_modules": "all-linear"},
    "gemma2": {"target_modules": "all-linear"},
    "gemma3": {"target_modules": [*ATTENTION, "gate_proj", "up_proj", "down_proj"]},
    "phi3-window": {"target_modules": ["qkv_proj", "gate_up_proj"]},
    "mixtral": {"target_modules": ATTENTION},
    "qwen3-moe": {"target_modules": ATTENTION},
    "gpt-neox": {"target_modules": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]},
    "opt": {"target_modules": ["q_proj", "v_proj", "out_proj", "fc1", "fc2"]},
    "gpt-oss": {"target_modules": ATTENTION},
    "olmo2": {"target_modules": "all-linear"},
    "cohere2": {"target_modules": "all-linear"},
    "stablelm": {"target_modules": "all-linear"},
}


def random_tokens(size: int, seed: int = 0) -> list[int]:
    return [int(token_id) for token_id in np.random.default_rng(seed).integers(3, 97, size)]


def logits_alone(executor: ModelExecutor, token_ids: list[int], place: int) -> Tensor:
    """Compute a prompt in one pass; every row samples."""
    size = len(token_ids)
    prompt: Int32Array = np.array(token_ids, np.int32)
    rows = np.arange(size, dtype=np.int32)
    batch = Batch(
        token_ids=prompt,
        positions=rows,
        out_slots=rows,
        qo_indptr=np.array([0, size], np.int32),
        kv_indptr=np.array([0, size], np.int32),
        kv_indices=rows,
        samples=tuple(SampleRow(row, GREEDY, row + 1, prompt, ()) for row in range(size)),
        adapters=np.array([place], np.int32),
    )
    return executor.logits(batch)


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def assert_same_as_peft(
    folder: Path, family: str, settings: Mapping[str, Any], executor_of: ExecutorOf = executor_with
) -> None:
    adapted = save_adapter(folder, family, **settings)
    executor = executor_of([read_tiny_adapter(folder, family)], family, 64)
    prompt = random_tokens(23)
    expected = logits_of(adapted, prompt)
    assert distance(logits_alone(executor, prompt, 0), expected) <= TOLERANCE
    assert distance(logits_alone(executor, prompt, BASE_MODEL), expected) > 100 * TOLERANCE, "it changes nothing"


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_adapter_computes_what_peft_computes(kind: str, tmp_path: Path) -> None:
    assert_same_as_peft(tmp_path, "llama", KINDS[kind])


@pytest.mark.parametrize("family", FAMILIES)
def test_an_adapter_of_a_family_computes_what_peft_computes(family: str, tmp_path: Path) -> None:
    assert_same_as_peft(tmp_path, family, FAMILIES[family])


@pytest.mark.parametrize("family", ["gemma2", "opt"])
def test_an_adapter_computes_what_peft_computes_beside_packed_weights(family: str, tmp_path: Path) -> None:
    assert_same_as_peft(tmp_path, family, FAMILIES[family], chosen_executor_with)


@pytest.mark.skipif(not RUNNABLE, reason="there are no kernels for this processor")
@pytest.mark.parametrize(
    ("family", "settings"), [*(("llama", settings) for settings in KINDS.values()), ("qwen2", FAMILIES["qwen2"])]
)
def test_native_code_computes_what_peft_computes(family: str, settings: Mapping[str, Any], tmp_path: Path) -> None:
    assert_same_as_peft(tmp_path, family, settings, native_executor_with)


MANY: tuple[Mapping[str, Any], ...] = (
    {"target_modules": ["q_proj", "v_proj"], "r": 4},
    {"target_modules": "all-linear", "r": 16, "lora_alpha": 8},
    {"target_modules": ["down_proj"], "r": 1, "use_rslora": True},
    {"target_modules": r".*layers\.1\..*_proj", "r": 7, "rank_pattern": {"k_proj": 3}},
)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[AdapterWeights], list[list[int]], list[list[int]]]:
    """Four adapters, five prompts, and what base model and adapted models generate, as PEFT computes them."""
    adapters, expected = [], []
    prompts = [random_tokens(size, seed) for seed, size in enumerate((9, 70, 14, 1, 30))]
    for place, settings in enumerate(MANY):
        folder = tmp_path_factory.mktemp("adapter")
        adapted: Any = save_adapter(folder, "llama", seed=place, **settings)
        adapters.append(read_tiny_adapter(folder, "llama"))
        adapted.get_base_model().set_attn_implementation("eager")
        if place == 0:
            with adapted.disable_adapter():
                expected.append(generated(adapted, prompts[0]))
        expected.append(generated(adapted, prompts[place + 1]))
    return adapters, prompts, expected


def generated(model: Any, prompt: list[int]) -> list[int]:
    tokens = torch.tensor([prompt])
    out = model.generate(
        input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NUM_NEW, min_new_tokens=NUM_NEW,
        do_sample=False,
    )  # fmt: skip
    return [int(token_id) for token_id in out[0, len(prompt) :]]


Many = tuple[list[AdapterWeights], list[list[int]], list[list[int]]]


@pytest.mark.parametrize(("chunk_tokens", "min_rows"), [(7, 1), (7, 4), (100, 1)])
def test_a_batch_of_base_model_and_four_adapters_answers_as_each_alone(
    many: Many, chunk_tokens: int, min_rows: int
) -> None:
    adapters, prompts, expected = many
    executor = executor_with(adapters, "llama", 256, min_rows)
    together = generate_flat(
        executor, prompts, NUM_NEW, chunk_tokens=chunk_tokens, num_slots=256, adapters=[BASE_MODEL, 0, 1, 2, 3]
    )
    assert together == expected
    assert len({tuple(output) for output in expected}) == len(expected)


def test_rows_of_the_base_model_between_those_of_adapters_change_nothing(many: Many) -> None:
    adapters, prompts, expected = many
    executor = executor_with(adapters, "llama", 256)
    order = [1, 2, 0, 3, 4]
    together = generate_flat(
        executor, [prompts[index] for index in order], NUM_NEW, chunk_tokens=7, num_slots=256, stagger=0,
        adapters=[index - 1 for index in order],
    )  # fmt: skip
    assert together == [expected[index] for index in order]


def test_sequences_with_the_same_adapter_answer_as_each_alone(many: Many) -> None:
    adapters, prompts, expected = many
    executor = executor_with(adapters, "llama", 512)
    twice = [prompts[index] for index in (1, 1, 2, 2)]
    together = generate_flat(executor, twice, NUM_NEW, chunk_tokens=7, num_slots=512, stagger=1, adapters=[0, 0, 1, 1])
    assert together == [expected[index] for index in (1, 1, 2, 2)]


def test_bits_of_the_base_model_do_not_depend_on_adapters_in_the_batch(many: Many) -> None:
    adapters, _, _ = many
    base_rows = []
    for places in ([BASE_MODEL] * 3, [0, BASE_MODEL, 1], [3, BASE_MODEL, 3]):
        executor = executor_with(adapters, "llama", 64)
        base_rows.append(executor.logits(three_sequences(places))[1])
    assert torch.equal(base_rows[0], base_rows[1])
    assert torch.equal(base_rows[0], base_rows[2])


def three_sequences(places: list[int]) -> Batch:
    """Three sequences of five tokens; the last row of each samples."""
    rows = np.arange(15, dtype=np.int32)
    borders = np.array([0, 5, 10, 15], np.int32)
    tokens = np.array(random_tokens(15), np.int32)
    return Batch(
        token_ids=tokens,
        positions=rows % 5,
        out_slots=rows,
        qo_indptr=borders,
        kv_indptr=borders,
        kv_indices=rows,
        samples=tuple(SampleRow(row, GREEDY, 5, tokens[:5], ()) for row in (4, 9, 14)),
        adapters=np.array(places, np.int32),
    )
