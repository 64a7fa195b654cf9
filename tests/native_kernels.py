"""The native kernels that tests compute with: those for every kind of processor that this one is."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tests.tools import missing
from worker.attention.backend import AttentionShape, LayerKV
from worker.attention.native_backend import native_shape, number_format
from worker.attention.sharing import shared_ranges
from worker.batch import Batch
from worker.native.build import Variant
from worker.native.library import BLOCK_TOKENS, Kernels, Ranges, load, runnable_variants

RUNNABLE = runnable_variants()
HOW_TO_GET = "install a C++ compiler (for example `apt-get install g++`), then run `python -m worker.native.build`"


def require_kernels(variant: Variant | None = None) -> Kernels:
    """Return the kernels for `variant`, or the best; where none were compiled, the test is skipped or fails."""
    wanted = RUNNABLE if variant is None else (variant,)
    found = next((kernels for each in wanted if (kernels := load(each)) is not None), None)
    if found is None:
        missing(f"no native kernels for {variant.name if variant else 'this processor'}; {HOW_TO_GET}")
    return found


def nothing_shared(batch: Batch) -> Ranges:
    return Ranges([], [], [])


def everything_shared(batch: Batch) -> Ranges:
    """Whatever any two sequences share in whole blocks, however little is gained by it."""
    found = shared_ranges(batch, min_tokens=1, min_rows=1, multiple_of=BLOCK_TOKENS)
    return Ranges([each.sequences for each in found], [each.first for each in found], [each.end for each in found])


def attend(
    native: Kernels,
    batch: Batch,
    ranges: Ranges,
    shape: AttentionShape,
    query: Tensor,
    kv: LayerKV,
    sinks: Tensor | None = None,
    threads: int = 1,
) -> Tensor:
    """One layer's attention, in memory that nobody has used before."""
    query = query.contiguous()
    out = torch.full((batch.num_tokens, shape.query_heads, shape.value_dim), float("nan"), dtype=query.dtype)
    pointers = [None if each is None else each.data_ptr() for each in (query, kv.keys, kv.values, sinks, out)]
    number = number_format(native, query.dtype)
    plan = native.plan(batch, ranges)
    native.attend(native.attention_space(), plan, number, native_shape(shape), pointers, threads)
    return out


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
