"""The native backend against the oracle, as compiled for every kind of processor that this one is.

Where kernels have edges: registers, panels of keys, blocks of 128 and spans of 1024 positions, rows of an item.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.contract.attention_oracle import CPU, check_backend
from tests.contract.attention_oracle import attend as oracle
from tests.contract.test_attention_backends import batch_of as in_pages
from tests.native_kernels import RUNNABLE, attend, everything_shared, nothing_shared, require_kernels, torch_threads
from tests.property.attention_trees import batch_of
from worker.attention.backend import AttentionShape, LayerKV
from worker.attention.native_backend import NativeBackend
from worker.batch import Batch
from worker.native.build import Variant
from worker.native.library import Kernels, NumberFormat

torch.set_num_threads(1)
pytestmark = pytest.mark.parametrize("variant", RUNNABLE, ids=lambda variant: variant.name)
PLAIN = AttentionShape(query_heads=6, kv_heads=2, key_dim=16, value_dim=16, scaling=0.25)
Chunks = tuple[tuple[int, int], ...]


def dtypes(native: Kernels) -> Sequence[torch.dtype]:
    return [torch.float32, *([torch.bfloat16] if native.has_format(NumberFormat.BFLOAT16) else [])]


def check(variant: Variant, batch: Batch, num_slots: int, shape: AttentionShape) -> None:
    native = require_kernels(variant)
    for dtype in dtypes(native):
        check_backend(NativeBackend(CPU, native), batch, num_slots, shape, dtype, seed=5)


def check_chunks(variant: Variant, chunks: Chunks, shape: AttentionShape) -> None:
    batch, num_slots = in_pages(chunks, 1, np.random.default_rng(4))
    check(variant, batch, num_slots, shape)


@pytest.mark.parametrize("value_dim", [2, 15, 16, 17, 33, 48])
@pytest.mark.parametrize("key_dim", [2, 6, 16, 30, 34, 72])
def test_heads_of_any_even_dimension(variant: Variant, key_dim: int, value_dim: int) -> None:
    shape = replace(PLAIN, key_dim=key_dim, value_dim=value_dim, scaling=key_dim**-0.5)
    check_chunks(variant, ((40, 1), (0, 19), (130, 3)), shape)


@pytest.mark.parametrize(
    ("query_heads", "kv_heads"), [(1, 1), (64, 1), (49, 1), (48, 1), (97, 1), (25, 5), (9, 3), (12, 12), (100, 2)]
)
def test_any_number_of_heads_that_share_keys(variant: Variant, query_heads: int, kv_heads: int) -> None:
    """Beyond 48 (or 96) a single row is more than an item is meant to have."""
    shape = replace(PLAIN, query_heads=query_heads, kv_heads=kv_heads)
    check_chunks(variant, ((140, 1), (3, 5), (0, 50)), shape)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 255, 257, 1020, 1025, 2100])
def test_contexts_around_the_edges_of_blocks_and_spans(variant: Variant, length: int) -> None:
    check_chunks(variant, ((length - 1, 1), (0, 2), (length, 1), (length + 3, 1)), PLAIN)
    check_chunks(variant, ((length - 1, 4),), replace(PLAIN, has_sinks=True))


ACROSS: dict[str, Chunks] = {
    "three rows": ((1022, 3),),
    "one span": ((1000, 60),),
    "two spans": ((900, 1200),),
    "beside others": ((1020, 9), (5, 1)),
}


@pytest.mark.parametrize("chunks", ACROSS.values(), ids=ACROSS)
def test_chunks_across_the_end_of_a_span(variant: Variant, chunks: Chunks) -> None:
    check_chunks(variant, chunks, replace(PLAIN, query_heads=2, kv_heads=1))


@pytest.mark.parametrize("window", [1, 2, 16, 127, 128, 129, 256, 1024, 1025, 5000])
def test_windows_around_the_edges(variant: Variant, window: int) -> None:
    shape = replace(PLAIN, window=window)
    check_chunks(variant, ((1200, 1), (1290, 40), (0, 130)), shape)


@pytest.mark.parametrize(
    "change",
    [
        {"softcap": 2.0},
        {"has_sinks": True},
        {"has_sinks": True, "window": 3},
        {"has_sinks": True, "softcap": 30.0, "window": 129},
        {"scaling": 6.0},  # one key takes almost all
        {"scaling": 0.0},  # all keys the same
    ],
    ids=str,
)
def test_softcap_sinks_and_scaling(variant: Variant, change: dict[str, float]) -> None:
    check_chunks(variant, ((1100, 2), (0, 60), (127, 1)), replace(PLAIN, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("sink", [-1e4, -90.0, 95.0, 1e4])
def test_sinks_far_from_all_logits(variant: Variant, sink: float) -> None:
    """One that takes all leaves nothing, and one that takes nothing leaves all: never a number that is none."""
    native = require_kernels(variant)
    batch, num_slots = in_pages(((1100, 1), (0, 3)), 1, np.random.default_rng(4))
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(4, 6, 16, generator=generator)
    kv = LayerKV(torch.randn(num_slots, 2, 16, generator=generator), torch.randn(num_slots, 2, 16, generator=generator))
    sinks = torch.full((6,), sink)
    got = attend(native, batch, nothing_shared(batch), PLAIN, query, kv, sinks)
    inputs = [each.double().numpy() for each in (query, kv.keys, kv.values)]
    expected = oracle(batch, PLAIN, inputs[0], inputs[1], inputs[2], sinks.double().numpy())
    np.testing.assert_allclose(got.double().numpy(), expected, atol=2e-5)


def tree() -> tuple[Batch, int]:
    """Nested prefixes of 3 levels, with borders in blocks, at their ends, and beyond a span."""
    deck = np.random.default_rng(6).permutation(7_000).astype(np.int32)
    trunk, left, right, inner, deep = np.split(deck, [200, 456, 1500, 1700])
    owns = np.split(deep, range(150, 4_500, 150))
    paths = [
        *(np.concatenate([trunk, left, inner, own[: 5 + index]]) for index, own in enumerate(owns[:4])),
        *(np.concatenate([trunk, left, own[: 40 * index + 1]]) for index, own in enumerate(owns[4:7])),
        *(np.concatenate([trunk, right, own[: 3 + index]]) for index, own in enumerate(owns[7:12])),
        np.concatenate([trunk, owns[12][:7]]),
        owns[13][:140],
        np.concatenate([trunk, right]),
    ]
    order = np.random.default_rng(7).permutation(len(paths))
    rows = [1 + 2 * (index % 3) for index in range(len(paths))]
    return batch_of([paths[index] for index in order], rows), len(deck)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    "shape",
    [
        PLAIN,
        replace(PLAIN, query_heads=50, kv_heads=1),
        replace(PLAIN, window=300, softcap=4.0, has_sinks=True),
        replace(PLAIN, query_heads=4, kv_heads=4, key_dim=20, value_dim=12),
    ],
    ids=["plain", "many heads share keys", "window, softcap and sinks", "odd sizes"],
)
def test_nested_prefixes_with_any_number_of_threads(variant: Variant, shape: AttentionShape, threads: int) -> None:
    batch, num_slots = tree()
    assert len(everything_shared(batch).ends) >= 4
    with torch_threads(threads):
        check(variant, batch, num_slots, shape)


@pytest.mark.parametrize("threads", [1, 5])
def test_three_hundred_sequences_of_one_token(variant: Variant, threads: int) -> None:
    with torch_threads(threads):
        check_chunks(variant, ((0, 1),) * 300, PLAIN)


def test_one_backend_serves_layers_and_steps_of_different_sizes(variant: Variant) -> None:
    """Its memory grows with its use, and what one step left there is nothing to the next."""
    native = require_kernels(variant)
    backend = NativeBackend(CPU, native)
    wide = AttentionShape(query_heads=40, kv_heads=2, key_dim=128, value_dim=128, scaling=0.1)
    for chunks, shape in [(((5, 1),), PLAIN), (((1500, 3),), wide), (((2, 1), (0, 30)), PLAIN), (((9, 9),), wide)]:
        batch, num_slots = in_pages(chunks, 1, np.random.default_rng(4))
        check_backend(backend, batch, num_slots, shape, dtypes(native)[-1], seed=6)


def test_what_these_kernels_cannot_compute_is_refused_by_name(variant: Variant) -> None:
    native = require_kernels(variant)
    batch, num_slots = in_pages(((3, 1),), 1, np.random.default_rng(0))

    def run(dtype: torch.dtype, key_dim: int = 16) -> Callable[[], object]:
        kv = LayerKV(torch.ones(num_slots, 2, key_dim, dtype=dtype), torch.ones(num_slots, 2, 16, dtype=dtype))
        query = torch.ones(1, 6, key_dim, dtype=dtype)
        plan = NativeBackend(CPU, native).plan(batch)
        return lambda: plan.run(replace(PLAIN, key_dim=key_dim), query, kv, None)

    with pytest.raises(ValueError, match=rf"kernels for {variant.name} don't compute in torch.float16"):
        run(torch.float16)()
    if native.has_format(NumberFormat.BFLOAT16):
        with pytest.raises(ValueError, match="keys of an odd dimension"):
            run(torch.bfloat16, key_dim=7)()
    else:
        with pytest.raises(ValueError, match=rf"kernels for {variant.name} don't compute in torch.bfloat16"):
            run(torch.bfloat16)()
    run(torch.float32, key_dim=7)()
