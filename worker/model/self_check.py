"""Compares this worker's way of running a model with the plain one, for families nobody has compared before.

The plain way is one eager forward pass over a sequence. Ours is the same tokens in uneven chunks over shuffled slots,
beside a second sequence. A family whose layers mean something else than the probe understood shows here.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from worker.batch import Batch, Int32Array, SampleRow, SamplingParams
from worker.errors import UnsupportedModelError
from worker.model.executor import ModelExecutor
from worker.model.forward import IMPLEMENTATION
from worker.model.probe import FORWARD_ERRORS
from worker.model.refusal import one_line

_NUM_TOKENS = 60
# A window is only seen to work by a sequence that is longer; beyond this it would take too long.
_MAX_TOKENS = 640
# Mean difference of logits, in standard deviations of logits, that rounding alone stays well below.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def num_check_tokens(windows: list[int]) -> int:
    """How long the compared sequence is, for layers with these windows."""
    longest = max((window for window in windows if window <= _MAX_TOKENS - 16), default=0)
    return max(_NUM_TOKENS, longest + 16)


def self_check(model: PreTrainedModel, executor: ModelExecutor, num_tokens: int) -> None:
    """Raise UnsupportedModelError if the two ways differ. The executor's pool needs 2 * num_tokens slots."""
    rng = np.random.default_rng(0)
    vocab_size = model.config.get_text_config(decoder=True).vocab_size
    sequences = [rng.integers(0, vocab_size, num_tokens).astype(np.int32) for _ in range(2)]
    slots = rng.permutation(2 * num_tokens).astype(np.int32).reshape(2, num_tokens)
    try:
        ours = _in_chunks(executor, sequences, slots)
        plain = _plainly(model, sequences[0])
    except FORWARD_ERRORS as error:
        raise UnsupportedModelError(
            f"{model.config.model_type}: a forward pass over {num_tokens} tokens fails: {one_line(error)}"
        ) from error
    difference = float((ours - plain).abs().mean() / plain.std().clamp(min=1e-6))
    if not difference <= _TOLERANCE[model.dtype]:
        raise UnsupportedModelError(
            f"{model.config.model_type}: computed in chunks over slots its logits differ from a plain forward pass by "
            f"{difference:.3g} standard deviations"
        )


def _plainly(model: PreTrainedModel, token_ids: Int32Array) -> Tensor:
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            tokens = torch.from_numpy(token_ids.astype(np.int64)).to(model.device)[None]
            logits: Tensor = model(input_ids=tokens, use_cache=False).logits[0].float()
            return logits
    finally:
        model.set_attn_implementation(IMPLEMENTATION)


def _in_chunks(executor: ModelExecutor, sequences: list[Int32Array], slots: Int32Array) -> Tensor:
    """Return the logits of the first sequence, float32[num_tokens, vocab_size]."""
    num_tokens = len(sequences[0])
    borders = sorted({0, 1, 2, num_tokens // 3, num_tokens // 2 + 1, num_tokens})
    logits = [executor.logits(_batch(sequences, slots, begin, end))[: end - begin] for begin, end in pairwise(borders)]
    return torch.cat(logits)


def _batch(sequences: list[Int32Array], slots: Int32Array, begin: int, end: int) -> Batch:
    """Both sequences' tokens begin..end-1, each of which samples."""
    size, count = end - begin, len(sequences)
    return Batch(
        token_ids=np.concatenate([tokens[begin:end] for tokens in sequences]),
        positions=np.tile(np.arange(begin, end, dtype=np.int32), count),
        out_slots=np.concatenate([own[begin:end] for own in slots]),
        qo_indptr=np.arange(0, size * count + 1, size, dtype=np.int32),
        kv_indptr=np.arange(0, end * count + 1, end, dtype=np.int32),
        kv_indices=np.concatenate([own[:end] for own in slots]),
        samples=tuple(
            SampleRow(row, SamplingParams(max_new_tokens=1, temperature=0.0), 0, sequences[0][:0], ())
            for row in range(size * count)
        ),
    )
