"""A row's attention has one result, bit for bit: whoever it is computed with, in which pieces, and by how many threads.

This is what makes a cache hit, a pause or company in a batch invisible in the answer, in bfloat16 as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.native_kernels import RUNNABLE, attend, everything_shared, nothing_shared, require_kernels
from tests.property.attention_trees import EDGES, batch_of, batch_on_a_tree
from worker.attention.backend import AttentionShape, LayerKV
from worker.batch import Batch, Int32Array
from worker.native.build import Variant
from worker.native.library import NumberFormat, Ranges

torch.set_num_threads(1)
SPAN_TOKENS = 1024
MAX_ALONE = 12  # rows that are computed all alone


@dataclass(frozen=True)
class Case:
    seed: int
    trunk: int  # tokens that all sequences begin with
    num_sequences: int
    max_tokens: int
    page_size: int
    scattered: bool
    max_rows: int
    shape: AttentionShape
    dtype: torch.dtype
    threads: int


@st.composite
def shapes(draw: st.DrawFn) -> AttentionShape:
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    key_dim = draw(st.sampled_from([16, 8, 20, 64]))
    return AttentionShape(
        query_heads=kv_heads * draw(st.sampled_from([1, 2, 3, 5, 13, 50])),
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=draw(st.sampled_from([key_dim, key_dim, 6, 36])),
        scaling=key_dim**-0.5,
        window=draw(st.none() | st.sampled_from([1, 100, 127, 128, 129, 300, 1030])),
        softcap=draw(st.none() | st.none() | st.just(4.0)),
        has_sinks=draw(st.booleans()),
    )


CASES = st.builds(
    Case,
    seed=st.integers(0, 2**32 - 1),
    trunk=st.sampled_from([0, 0, 120, 1_000, 2_000]),
    num_sequences=st.sampled_from([4, 9, 2, 1]),
    max_tokens=st.sampled_from([300, 600, 40, 1200]),
    page_size=st.sampled_from([1, 1, 16]),
    scattered=st.booleans(),
    max_rows=st.sampled_from([1, 5, 80, 300]),
    shape=shapes(),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    threads=st.sampled_from([1, 1, 2, 5]),
)


@dataclass(frozen=True)
class Layer:
    """What one layer has for every row of a batch, and how some of them attend."""

    variant: Variant
    case: Case
    batch: Batch
    query: Tensor
    kv: LayerKV
    sinks: Tensor | None

    def path(self, sequence: int) -> Int32Array:
        return self.batch.kv_indices[self.batch.kv_indptr[sequence] : self.batch.kv_indptr[sequence + 1]]

    def together(self, shared: Callable[[Batch], Ranges], threads: int) -> Tensor:
        return self._attend(self.batch, shared(self.batch), self.query, threads)

    def piece(self, sequence: int, begin: int, end: int) -> Tensor:
        """The rows begin..end-1 of the batch, which belong to one sequence, as a step of their own."""
        path = self.path(sequence)[: int(self.batch.positions[end - 1]) + 1]
        batch = batch_of([path], [end - begin])
        return self._attend(batch, nothing_shared(batch), self.query[begin:end], 1)

    def _attend(self, batch: Batch, ranges: Ranges, query: Tensor, threads: int) -> Tensor:
        native = require_kernels(self.variant)
        return attend(native, batch, ranges, self.case.shape, query, self.kv, self.sinks, threads)


def layer_of(variant: Variant, case: Case) -> Layer:
    rng = np.random.default_rng(case.seed)
    tree = batch_on_a_tree(
        rng,
        num_sequences=case.num_sequences,
        max_tokens=case.max_tokens,
        page_size=case.page_size,
        scattered=case.scattered,
        max_rows=case.max_rows,
    )
    num_slots = case.trunk + tree.num_slots
    deck = rng.permutation(num_slots).astype(np.int32) if case.scattered else np.arange(num_slots, dtype=np.int32)
    trunk, renamed = deck[: case.trunk], deck[case.trunk :]
    paths = [np.concatenate([trunk, renamed[tree.batch.kv_indices[a:b]]]) for a, b in pairwise(tree.batch.kv_indptr)]
    batch = batch_of(paths, np.diff(tree.batch.qo_indptr).tolist())
    generator = torch.Generator().manual_seed(case.seed)
    shape = case.shape

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(case.dtype)

    return Layer(
        variant,
        case,
        batch,
        query=draw(batch.num_tokens, shape.query_heads, shape.key_dim),
        kv=LayerKV(draw(num_slots, shape.kv_heads, shape.key_dim), draw(num_slots, shape.kv_heads, shape.value_dim)),
        sinks=draw(shape.query_heads).float() if shape.has_sinks else None,
    )


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def assert_same_bits(one: Tensor, other: Tensor) -> None:
    differing = (bits(one) != bits(other)).flatten(1).any(dim=1).nonzero().flatten().tolist()
    assert not differing, f"rows {differing[:8]} differ, by {(one.float() - other.float()).abs().max()} at most"


def crosses_spans(batch: Batch) -> bool:
    spans = batch.positions // SPAN_TOKENS
    return any(spans[begin] != spans[end - 1] for begin, end in pairwise(batch.qo_indptr))


def cuts(rng: np.random.Generator, begin: int, end: int) -> Sequence[int]:
    inner = rng.choice(np.arange(begin, end), size=min(3, end - begin), replace=False)
    return sorted({begin, end, *inner.tolist()})


PLAIN = AttentionShape(query_heads=4, kv_heads=2, key_dim=16, value_dim=16, scaling=0.25)


@pytest.mark.parametrize("variant", RUNNABLE, ids=lambda variant: variant.name)
@settings(max_examples=60)
@given(case=CASES)
@example(case=Case(0, 1_000, 9, 300, 1, True, 300, PLAIN, torch.float32, 1))
def test_a_row_has_the_same_bits_in_any_company(variant: Variant, case: Case) -> None:
    if case.dtype == torch.bfloat16 and not require_kernels(variant).has_format(NumberFormat.BFLOAT16):
        return
    layer = layer_of(variant, case)
    batch = layer.batch
    event(f"a chunk ends in another span than it began in: {crosses_spans(batch)}")
    event(f"shared ranges: {min(len(everything_shared(batch).ends), 4)}")
    expected = layer.together(nothing_shared, threads=1)
    assert not expected.isnan().any(), "a row that nobody wrote"

    assert_same_bits(layer.together(everything_shared, threads=case.threads), expected)
    assert_same_bits(layer.together(nothing_shared, threads=case.threads), expected)
    rng = np.random.default_rng(case.seed)
    for sequence in range(batch.num_sequences):
        first, stop = int(batch.qo_indptr[sequence]), int(batch.qo_indptr[sequence + 1])
        borders = cuts(rng, first, stop)
        pieces = [layer.piece(sequence, a, b) for a, b in pairwise(borders)]
        assert_same_bits(torch.cat(pieces), expected[first:stop])
    for row in rng.permutation(batch.num_tokens)[:MAX_ALONE].tolist():
        sequence = int(np.searchsorted(batch.qo_indptr, row, side="right")) - 1
        assert_same_bits(layer.piece(sequence, row, row + 1), expected[row : row + 1])


@pytest.mark.parametrize("variant", RUNNABLE, ids=lambda variant: variant.name)
@pytest.mark.parametrize("num_rows", [30, 1040])
def test_a_prompts_chunk_across_the_end_of_a_span_is_what_its_rows_are_alone(variant: Variant, num_rows: int) -> None:
    """Rows of one item have different numbers of spans there."""
    native = require_kernels(variant)
    path = np.random.default_rng(0).permutation(2_100).astype(np.int32)
    batch = batch_of([path[:1040], path[1040:2100]], [num_rows, 1])
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(num_rows + 1, 4, 16, generator=generator)
    kv = LayerKV(torch.randn(2_100, 2, 16, generator=generator), torch.randn(2_100, 2, 16, generator=generator))
    together = attend(native, batch, nothing_shared(batch), PLAIN, query, kv)
    for row in range(max(0, num_rows - 24), num_rows):
        one = batch_of([path[: int(batch.positions[row]) + 1]], [1])
        assert_same_bits(
            attend(native, one, nothing_shared(one), PLAIN, query[row : row + 1], kv), together[row : row + 1]
        )


@pytest.mark.parametrize("variant", RUNNABLE, ids=lambda variant: variant.name)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_many_sequences_below_nested_prefixes_have_the_bits_that_each_has_alone(variant: Variant, threads: int) -> None:
    """More rows than an item takes share ranges that begin and end within spans and behind them."""
    native = require_kernels(variant)
    dtype = torch.bfloat16 if native.has_format(NumberFormat.BFLOAT16) else torch.float32
    shape = AttentionShape(query_heads=6, kv_heads=2, key_dim=16, value_dim=16, scaling=0.25)
    rng = np.random.default_rng(0)
    deck = rng.permutation(9_000).astype(np.int32)
    trunk, branches, inner = deck[:300], (deck[300:1500], deck[1500:2300]), deck[2300:2900]
    paths = [
        np.concatenate([trunk, branches[index % 2], *([inner] * (index % 3 == 0)), own[: EDGES[index % 5] + 3]])
        for index, own in enumerate(np.split(deck[2900:5360], 60))
    ]
    batch = batch_of(paths, [1 + index % 3 for index in range(len(paths))])
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    query, kv = draw(batch.num_tokens, 6, 16), LayerKV(draw(9_000, 2, 16), draw(9_000, 2, 16))
    assert sorted(everything_shared(batch).ends.tolist()) == [256, 1024, 1408, 1664, 2048], "three levels"
    got = attend(native, batch, everything_shared(batch), shape, query, kv, threads=threads)
    alone = [
        attend(native, one, nothing_shared(one), shape, query[batch.qo_indptr[i] : batch.qo_indptr[i + 1]], kv)
        for i, path in enumerate(paths)
        for one in [batch_of([path], [1 + i % 3])]
    ]
    assert_same_bits(got, torch.cat(alone))
