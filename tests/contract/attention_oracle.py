"""What attention over slots means, in float64 and one row at a time: slow, and too plain to be wrong."""

import math

import numpy as np
from numpy.typing import NDArray

from worker.attention.backend import AttentionShape
from worker.batch import Batch

Float64Array = NDArray[np.float64]


def attend(
    batch: Batch,
    shape: AttentionShape,
    query: Float64Array,
    keys: Float64Array,
    values: Float64Array,
    sinks: Float64Array | None,
) -> Float64Array:
    """Return float64[num_tokens, query_heads, value_dim]."""
    out = np.zeros((batch.num_tokens, shape.query_heads, shape.value_dim))
    group = shape.query_heads // shape.kv_heads
    for sequence in range(batch.num_sequences):
        slots = batch.kv_indices[batch.kv_indptr[sequence] : batch.kv_indptr[sequence + 1]]
        for row in range(batch.qo_indptr[sequence], batch.qo_indptr[sequence + 1]):
            position = int(batch.positions[row])
            seen = [p for p in range(position + 1) if shape.window is None or p > position - shape.window]
            for head in range(shape.query_heads):
                logits = [_logit(shape, query[row, head], keys[slots[p], head // group]) for p in seen]
                sink = [] if sinks is None else [float(sinks[head])]
                top = max(logits + sink)
                weights = [math.exp(logit - top) for logit in logits]
                total = sum(weights) + sum(math.exp(logit - top) for logit in sink)
                out[row, head] = sum(
                    weight / total * values[slots[p], head // group] for weight, p in zip(weights, seen, strict=True)
                )
    return out


def _logit(shape: AttentionShape, query: Float64Array, key: Float64Array) -> float:
    logit = shape.scaling * float(query @ key)
    return logit if shape.softcap is None else shape.softcap * math.tanh(logit / shape.softcap)
