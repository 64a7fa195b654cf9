"""Flattened, chunked, over shuffled and shared slots: the same tokens as transformers' own generate, per family."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.integration.flat_batches import GREEDY, executor_of, generate_flat, generate_plain
from tests.integration.tiny_models import FAMILIES, WINDOW, tiny, tiny_model
from worker.batch import Batch, SampleRow, SamplingParams
from worker.errors import UnsupportedModelError
from worker.model.linears import pack_linears
from worker.model.probe import probe
from worker.model.rotary import pin_rotary
from worker.model.self_check import num_check_tokens, self_check

torch.set_num_threads(1)
NUM_NEW = 16
SHARED = 11


def prompts(vocab_size: int = 97) -> list[list[int]]:
    rng = np.random.default_rng(1)
    shared = rng.integers(3, vocab_size, SHARED).tolist()
    return [shared + rng.integers(3, vocab_size, size).tolist() for size in (12, 1, 30, 5)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_generates_what_transformers_generates(family: str) -> None:
    model = tiny(family)
    pin_rotary(model, 256)
    expected = [generate_plain(model, prompt, NUM_NEW) for prompt in prompts()]
    executor = executor_of(model, num_slots=256)
    for chunk_tokens in (7, 64):
        got = generate_flat(
            executor, prompts(), NUM_NEW, chunk_tokens=chunk_tokens, num_slots=256, seed=chunk_tokens, shared=SHARED
        )
        assert got == expected
    assert len({tuple(output) for output in expected}) > 1, "random weights that always say the same prove nothing"


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt-oss", "stablelm"])
def test_packed_weights_generate_the_same(family: str) -> None:
    model = tiny(family)
    expected = [generate_plain(model, prompt, NUM_NEW) for prompt in prompts()]
    assert pack_linears(model) > 0
    executor = executor_of(model, num_slots=256)
    assert generate_flat(executor, prompts(), NUM_NEW, chunk_tokens=7, num_slots=256) == expected


def test_packing_leaves_the_embedding_that_shares_a_weight_alone() -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    embedded = model.get_input_embeddings()(torch.tensor([5])).clone()
    assert pack_linears(model) > 0
    assert torch.equal(model.get_input_embeddings()(torch.tensor([5])), embedded)


def test_no_mask_is_ever_built() -> None:
    """The probe would refuse one; here for a model whose masks differ by layer."""
    assert [layer.shape.window for layer in probe(tiny("gemma3"))] == [WINDOW, None, WINDOW]


@pytest.mark.parametrize(
    ("family", "windows"),
    [
        ("qwen2", [None, None, None]),
        ("qwen2-window", [None, WINDOW, WINDOW]),
        ("mistral-window", [WINDOW] * 3),
        ("phi3-window", [WINDOW] * 3),
        ("exaone4", [WINDOW, None, WINDOW]),
    ],
)
def test_the_probe_reads_each_layers_window(family: str, windows: list[int | None]) -> None:
    assert [layer.shape.window for layer in probe(tiny(family))] == windows


def test_the_probe_reads_heads_scaling_softcap_and_sinks() -> None:
    shape = probe(tiny("gemma2"))[0].shape
    assert (shape.query_heads, shape.kv_heads, shape.key_dim, shape.value_dim) == (4, 2, 8, 8)
    assert shape.softcap == 5.0
    assert probe(tiny("granite"))[0].shape.scaling == 0.2
    assert probe(tiny("gpt-oss"))[0].shape.has_sinks
    assert not shape.has_sinks


def test_sampled_output_is_the_same_alone_and_in_a_batch() -> None:
    model = tiny("qwen3")
    executor = executor_of(model, num_slots=256)
    wanted = SamplingParams(max_new_tokens=1, temperature=0.9, top_p=0.95, seed=11)
    together = generate_flat(executor, prompts(), NUM_NEW, chunk_tokens=7, num_slots=256, params=wanted)
    alone = [
        generate_flat(executor, [prompt], NUM_NEW, chunk_tokens=64, num_slots=256, seed=3, params=wanted)[0]
        for prompt in prompts()
    ]
    assert together == alone
    other = generate_flat(executor, prompts(), NUM_NEW, chunk_tokens=7, num_slots=256, params=replace(wanted, seed=12))
    assert other != together


def test_a_step_in_which_nothing_samples_writes_keys_and_returns_nothing() -> None:
    executor = executor_of(tiny("llama"), num_slots=8)
    batch = Batch(
        token_ids=np.array([5, 6], np.int32),
        positions=np.array([0, 1], np.int32),
        out_slots=np.array([7, 2], np.int32),
        qo_indptr=np.array([0, 2], np.int32),
        kv_indptr=np.array([0, 2], np.int32),
        kv_indices=np.array([7, 2], np.int32),
        samples=(),
    )
    assert executor.run(batch) == []
    written = executor.pool.key(0).abs().sum(dim=(1, 2)) > 0
    assert written.nonzero()[:, 0].tolist() == [2, 7]


def test_longrope_is_the_same_whatever_else_is_in_the_batch() -> None:
    """Unpinned, one sequence beyond the original length would change the rotation of all others."""
    scaled = {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [3.0, 2.0, 1.5, 1.2],
        "original_max_position_embeddings": 32, "factor": 8.0,
    }  # fmt: skip
    model = tiny_model("phi3", rope_parameters=scaled, original_max_position_embeddings=32)
    assert pin_rotary(model, 256)
    executor = executor_of(model, num_slots=512)
    rng = np.random.default_rng(2)
    short, long = rng.integers(3, 97, 10).tolist(), rng.integers(3, 97, 60).tolist()
    [alone] = generate_flat(executor, [short], NUM_NEW, chunk_tokens=64, num_slots=512)
    together = generate_flat(executor, [short, long], NUM_NEW, chunk_tokens=16, num_slots=512, stagger=0)
    assert together[0] == alone
    # Beyond the original length, pinned and plain agree: both use the long factors.
    assert together[1] == generate_plain(model, long, NUM_NEW)


def test_rotary_embeddings_that_do_not_look_at_positions_are_left_alone() -> None:
    assert not pin_rotary(tiny("llama-yarn"), 256)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-oss"])
def test_the_self_check_accepts_what_is_right(family: str) -> None:
    model = tiny(family)
    num_tokens = num_check_tokens([WINDOW])
    self_check(model, executor_of(model, 2 * num_tokens), num_tokens)


def test_the_self_check_refuses_a_layer_that_means_something_else() -> None:
    """A window that the probe does not see: what a family unknown here might do."""
    model = tiny("mistral-window")
    model.config.sliding_window = None
    for module in model.modules():
        if hasattr(module, "sliding_window"):
            vars(module)["sliding_window"] = None
    num_tokens = num_check_tokens([])
    executor = executor_of(model, 2 * num_tokens)
    model.config.sliding_window = 5
    with pytest.raises(UnsupportedModelError, match=r"mistral: .* differ from a plain forward pass"):
        self_check(model, executor, num_tokens)


def test_a_window_short_enough_to_check_is_exceeded_by_the_check() -> None:
    assert num_check_tokens([]) == 60
    assert num_check_tokens([128, 4096]) == 144


def test_a_sample_row_needs_nothing_but_its_own_row() -> None:
    """Two rows of one chunk may both sample: what speculative decoding or prompt logprobs would ask for."""
    executor = executor_of(tiny("llama"), num_slots=8)
    tokens = np.array([5, 6, 7], np.int32)
    batch = Batch(
        token_ids=tokens,
        positions=np.arange(3, dtype=np.int32),
        out_slots=np.arange(3, dtype=np.int32),
        qo_indptr=np.array([0, 3], np.int32),
        kv_indptr=np.array([0, 3], np.int32),
        kv_indices=np.arange(3, dtype=np.int32),
        samples=tuple(SampleRow(row, GREEDY, row + 1, tokens, ()) for row in (1, 2)),
    )
    assert len(executor.run(batch)) == 2
