"""Attention on a GPU against the reference backend on the CPU in float32: every backend that the machine has."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.gpu.device import CUDA, ON_CUDA
from worker.attention.backend import AttentionShape, LayerKV
from worker.attention.flashinfer_backend import serves
from worker.attention.registry import available_backends, backend_by_name, backend_names
from worker.attention.torch_backend import TorchBackend
from worker.batch import Batch

pytestmark = [*ON_CUDA, pytest.mark.timeout(240)]  # FlashInfer compiles kernels when they are first planned

SMOLLM = AttentionShape(query_heads=9, kv_heads=3, key_dim=64, value_dim=64, scaling=0.125)
LLAMA = AttentionShape(query_heads=8, kv_heads=2, key_dim=128, value_dim=128, scaling=128**-0.5)
SHAPES = {
    "groups of 3, 64 wide": SMOLLM,
    "groups of 4, 128 wide": LLAMA,
    "window": replace(LLAMA, window=100),
    "softcap": replace(LLAMA, softcap=20.0),
    "sinks": replace(SMOLLM, has_sinks=True),
    "window and sinks": replace(SMOLLM, window=33, has_sinks=True),
    "80 wide": replace(SMOLLM, key_dim=80, value_dim=80),
    "values narrower than keys": replace(LLAMA, value_dim=64),
}
# (tokens cached, tokens computed now) of each sequence
BATCHES = {
    "one row": ((700, 1),),
    "decode": tuple((50 * number, 1) for number in range(1, 17)),
    "prefill": ((0, 512), (0, 1)),
    "mixed": ((1_500, 1), (300, 65), (0, 130), (1_030, 257), (5, 1)),
}
# Last the one that compiles its kernels first.
BACKENDS = sorted(backend_names(), key=lambda name: name == "flashinfer")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2}


def batch_of(chunks: tuple[tuple[int, int], ...], num_shared: int, rng: np.random.Generator) -> Batch:
    """Sequences in slots dealt out at random; those that are long enough share the slots of their first tokens."""
    total = sum(cached + new for cached, new in chunks)
    deck = rng.permutation(total + num_shared).astype(np.int32)
    shared, deck = deck[:num_shared], deck[num_shared:]
    slots, start = [], 0
    for cached, new in chunks:
        mine = deck[start : start + cached + new].copy()
        start += cached + new
        if cached >= num_shared:
            mine[:num_shared] = shared
        slots.append(mine)
    return Batch(
        token_ids=np.zeros(sum(new for _, new in chunks), np.int32),
        positions=np.concatenate([np.arange(c, c + n, dtype=np.int32) for c, n in chunks]),
        out_slots=np.concatenate([mine[c:] for mine, (c, _) in zip(slots, chunks, strict=True)]),
        qo_indptr=np.cumsum([0, *(new for _, new in chunks)]).astype(np.int32),
        kv_indptr=np.cumsum([0, *(cached + new for cached, new in chunks)]).astype(np.int32),
        kv_indices=np.concatenate(slots),
        samples=(),
    )


def available(backend: str) -> str:
    if backend not in available_backends(CUDA):
        pytest.skip(f"{backend} is not available here")
    return backend


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("batch_name", BATCHES)
@pytest.mark.parametrize("shape_name", SHAPES)
@pytest.mark.parametrize("backend_name", BACKENDS)
def test_a_backend_computes_what_the_reference_does(
    backend_name: str, shape_name: str, batch_name: str, dtype: torch.dtype
) -> None:
    shape = SHAPES[shape_name]
    batch = batch_of(BATCHES[batch_name], 200, np.random.default_rng(1))
    num_slots = int(batch.kv_indices.max()) + 1
    generator = torch.Generator().manual_seed(2)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    keys = draw(num_slots, shape.kv_heads, shape.key_dim)
    values = draw(num_slots, shape.kv_heads, shape.value_dim)
    foreign = np.setdiff1d(np.arange(num_slots), batch.kv_indices)
    keys[foreign], values[foreign] = float("nan"), float("nan")
    query = draw(batch.num_tokens, shape.query_heads, shape.key_dim)
    sinks = draw(shape.query_heads) if shape.has_sinks else None

    plan = backend_by_name(available(backend_name), CUDA).plan(batch)
    kv = LayerKV(keys.to(CUDA), values.to(CUDA))
    got = plan.run(shape, query.to(CUDA), kv, None if sinks is None else sinks.to(CUDA))
    wide = LayerKV(keys.float(), values.float())
    expected = TorchBackend(torch.device("cpu")).plan(batch).run(shape, query.float(), wide, sinks)

    assert got.dtype == dtype
    torch.testing.assert_close(got.float().cpu(), expected, atol=TOLERANCE[dtype], rtol=0)


def test_flashinfer_computes_with_its_own_kernels_what_it_says_it_serves() -> None:
    available("flashinfer")
    assert serves(SMOLLM, torch.bfloat16)
    backend = backend_by_name("flashinfer", CUDA)
    batch = batch_of(BATCHES["mixed"], 0, np.random.default_rng(3))
    num_slots = int(batch.kv_indices.max()) + 1
    pool = torch.zeros(num_slots, SMOLLM.kv_heads, 64, dtype=torch.bfloat16, device=CUDA)
    query = torch.zeros(batch.num_tokens, SMOLLM.query_heads, 64, dtype=torch.bfloat16, device=CUDA)
    assert not backend.plan(batch).run(SMOLLM, query, LayerKV(pool, pool), None).any()
    assert backend._wrappers  # type: ignore[attr-defined]


def test_plans_made_one_behind_the_other_do_not_disturb_those_that_are_not_done() -> None:
    """Nobody waits for the device between them, as if steps were prepared ahead."""
    available("flashinfer")
    backend = backend_by_name("flashinfer", CUDA)
    rng = np.random.default_rng(4)
    batches = [batch_of(tuple((int(rng.integers(1, 900)), 1) for _ in range(16)), 0, rng) for _ in range(20)]
    keys = torch.randn(16 * 1_000, 3, 64, device=CUDA).to(torch.bfloat16)
    kv = LayerKV(keys, keys)
    queries = [torch.randn(16, 9, 64, device=CUDA).to(torch.bfloat16) for _ in batches]
    got = [backend.plan(batch).run(SMOLLM, query, kv, None) for batch, query in zip(batches, queries, strict=True)]
    reference = TorchBackend(CUDA)
    for batch, query, out in zip(batches, queries, got, strict=True):
        expected = reference.plan(batch).run(SMOLLM, query, kv, None)
        torch.testing.assert_close(out.float(), expected.float(), atol=1.6e-2, rtol=0)
