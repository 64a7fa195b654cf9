"""A token's logits have the same bits however its sequence came there.

Cold and at once, in chunks, as a decode step, beside others, on a prefix that somebody else computed, with any number
of threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from hicache.tiers.device import DevicePool
from tests.integration.flat_batches import GREEDY
from tests.integration.tiny_models import tiny
from tests.native_kernels import require_kernels, torch_threads
from worker.batch import Batch, Int32Array, SampleRow
from worker.model.choosing import layer_shapes
from worker.model.native_forward import NativeForward, NativeModel
from worker.model.plain_decoder import plain_decoder
from worker.model.probe import probe
from worker.native.library import NumberFormat

torch.set_num_threads(1)
NUM_SLOTS = 6_000
VOCABULARY = 97


@dataclass
class Text:
    tokens: Int32Array
    slots: Int32Array
    computed: int
    logits: list[Tensor] = field(default_factory=list)  # of every token computed here, in order


@cache
def forward(family: str, dtype: torch.dtype) -> NativeForward:
    native = require_kernels()
    if dtype == torch.bfloat16 and not native.has_format(NumberFormat.BFLOAT16):
        pytest.skip("this processor has no bfloat16 arithmetic")
    model = tiny(family)
    probed = probe(model)
    model.to(dtype)  # type: ignore[arg-type]
    decoder = plain_decoder(model, probed, native, threads=1)
    return NativeModel(decoder).over(DevicePool(layer_shapes(probed), NUM_SLOTS, dtype, torch.device("cpu")))


def step(computed_by: NativeForward, chunks: Sequence[tuple[Text, int]]) -> None:
    """Compute the next tokens of some sequences, each of which samples."""
    ends = [sequence.computed + size for sequence, size in chunks]
    sizes = [size for _, size in chunks]
    no_prompt = np.zeros(0, np.int32)
    batch = Batch(
        token_ids=np.concatenate([s.tokens[s.computed : end] for (s, _), end in zip(chunks, ends, strict=True)]),
        positions=np.concatenate(
            [np.arange(s.computed, end, dtype=np.int32) for (s, _), end in zip(chunks, ends, strict=True)]
        ),
        out_slots=np.concatenate([s.slots[s.computed : end] for (s, _), end in zip(chunks, ends, strict=True)]),
        qo_indptr=np.cumsum([0, *sizes]).astype(np.int32),
        kv_indptr=np.cumsum([0, *ends]).astype(np.int32),
        kv_indices=np.concatenate([s.slots[:end] for (s, _), end in zip(chunks, ends, strict=True)]),
        samples=tuple(SampleRow(row, GREEDY, 0, no_prompt, ()) for row in range(sum(sizes))),
    )
    logits = computed_by.logits(batch)
    assert logits.shape == (sum(sizes), VOCABULARY)
    for (sequence, size), end, rows in zip(chunks, ends, torch.split(logits, sizes), strict=True):
        assert size == len(rows)
        sequence.logits.append(rows)
        sequence.computed = end


def cold(computed_by: NativeForward, tokens: Int32Array, rng: np.random.Generator) -> Tensor:
    sequence = Text(tokens, rng.permutation(NUM_SLOTS).astype(np.int32)[: len(tokens)], 0)
    step(computed_by, [(sequence, len(tokens))])
    return sequence.logits[0]


def in_pieces(computed_by: NativeForward, sequences: Sequence[Text], max_chunk: int, rng: np.random.Generator) -> None:
    """Step after step some of the sequences that aren't done compute a chunk; near the end a single token."""
    while waiting := [sequence for sequence in sequences if sequence.computed < len(sequence.tokens)]:
        chosen = rng.permutation(len(waiting))[: rng.integers(1, len(waiting) + 1)]
        chunks = []
        for index in chosen:
            left = len(waiting[index].tokens) - waiting[index].computed
            decodes = left <= 12 or rng.random() < 0.05
            chunks.append((waiting[index], 1 if decodes else int(rng.integers(1, min(left, max_chunk) + 1))))
        step(computed_by, chunks)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@settings(max_examples=25)
@given(
    family=st.sampled_from(["llama", "qwen2-window", "qwen3", "granite"]),
    seed=st.integers(0, 2**32 - 1),
    shared_tokens=st.sampled_from([0, 5, 130, 300, 1100]),
    num_sequences=st.integers(1, 5),
    max_own=st.sampled_from([20, 140]),
    pace=st.sampled_from([(1, 7), (1, 64), (1, 512), (2, 64), (5, 512)]),
)
@example(family="llama", seed=1, shared_tokens=1100, num_sequences=2, max_own=20, pace=(1, 512))
def test_a_token_has_one_set_of_logits(
    dtype: torch.dtype,
    family: str,
    seed: int,
    shared_tokens: int,
    num_sequences: int,
    max_own: int,
    pace: tuple[int, int],
) -> None:
    threads, max_chunk = pace
    computed_by = forward(family, dtype)
    rng = np.random.default_rng(seed)
    common = rng.integers(0, VOCABULARY, shared_tokens, dtype=np.int32)
    texts = [
        np.concatenate([common, rng.integers(0, VOCABULARY, rng.integers(1, max_own + 1), dtype=np.int32)])
        for _ in range(num_sequences)
    ]
    expected = [cold(computed_by, text, rng) for text in texts]

    deck = rng.permutation(NUM_SLOTS).astype(np.int32)
    prefix, rest = deck[:shared_tokens], deck[shared_tokens:]
    owns = np.split(rest, np.cumsum([len(text) - shared_tokens for text in texts]))
    sequences = [
        Text(text, np.concatenate([prefix, own]), shared_tokens) for text, own in zip(texts, owns, strict=False)
    ]
    first = Text(common, prefix, 0)
    with torch_threads(threads):
        in_pieces(computed_by, [first], max_chunk, rng)
        in_pieces(computed_by, sequences, max_chunk, rng)
    for sequence, logits in zip(sequences, expected, strict=True):
        assert torch.isfinite(logits).all()
        assert torch.equal(torch.cat([*first.logits, *sequence.logits]), logits)
