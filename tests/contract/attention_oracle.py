"""What attention over slots means, in float64 and one row at a time: slow, and too plain to be wrong."""

import numpy as np
import torch
from numpy.typing import NDArray

from worker.attention.backend import AttentionBackend, AttentionShape, LayerKV
from worker.batch import Batch

Float64Array = NDArray[np.float64]
CPU = torch.device("cpu")
# Absolute, and relative: half of the last place of bfloat16 is 2 ** -9 to 2 ** -8 of a number.
TOLERANCE = {torch.float32: (2e-5, 1e-5), torch.bfloat16: (8e-3, 4e-3)}


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
    sink = np.full((shape.query_heads, 1), -np.inf) if sinks is None else sinks[:, None]
    for sequence in range(batch.num_sequences):
        slots = batch.kv_indices[batch.kv_indptr[sequence] : batch.kv_indptr[sequence + 1]]
        for row in range(batch.qo_indptr[sequence], batch.qo_indptr[sequence + 1]):
            position = int(batch.positions[row])
            first = 0 if shape.window is None else max(0, position - shape.window + 1)
            seen = slots[first : position + 1]
            by_kv_head = query[row].reshape(shape.kv_heads, -1, shape.key_dim)
            logits = shape.scaling * (by_kv_head @ keys[seen].transpose(1, 2, 0)).reshape(shape.query_heads, -1)
            if shape.softcap is not None:
                logits = shape.softcap * np.tanh(logits / shape.softcap)
            top = np.maximum(logits.max(axis=1, keepdims=True), sink)
            weights = np.exp(logits - top)
            weights /= weights.sum(axis=1, keepdims=True) + np.exp(sink - top)
            found = weights.reshape(shape.kv_heads, -1, len(seen)) @ values[seen].transpose(1, 0, 2)
            out[row] = found.reshape(shape.query_heads, -1)
    return out


def check_backend(
    backend: AttentionBackend, batch: Batch, num_slots: int, shape: AttentionShape, dtype: torch.dtype, seed: int
) -> None:
    """Compare what a backend computes for `batch`, over random numbers, with the oracle."""
    rng = np.random.default_rng(seed)

    def draw(*size: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=size)).to(dtype)

    query = draw(batch.num_tokens, shape.query_heads, shape.key_dim)
    keys = draw(num_slots, shape.kv_heads, shape.key_dim)
    values = draw(num_slots, shape.kv_heads, shape.value_dim)
    sinks = draw(shape.query_heads) if shape.has_sinks else None
    # What no sequence owns must never be read: a nan there would show.
    unowned = np.setdiff1d(np.arange(num_slots), batch.kv_indices)
    keys[unowned], values[unowned] = float("nan"), float("nan")

    plan = backend.plan(batch)
    got = plan.run(shape, query, LayerKV(keys, values), sinks)
    # A plan serves all layers of a step: one must not disturb the next.
    again = plan.run(shape, query, LayerKV(keys, values), sinks)

    expected = attend(
        batch,
        shape,
        query.double().numpy(),
        keys.double().numpy(),
        values.double().numpy(),
        None if sinks is None else sinks.double().numpy(),
    )
    assert got.dtype == dtype
    assert got.shape == expected.shape
    assert torch.equal(got, again)
    atol, rtol = TOLERANCE[dtype]
    np.testing.assert_allclose(got.double().numpy(), expected, atol=atol, rtol=rtol)
