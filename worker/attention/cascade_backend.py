"""Cascade attention in plain torch, any device: what sequences share is read once for all of them.

The sequences of a batch are leaves of a tree (`sharing`). Rows of all sequences below a shared range attend to it in
one product, with their queries stacked; what each row sees beside that is its tail (`tails`). The parts are merged by
their log-sum-exp, which is exact: no answer depends on who else is there, beyond the order of additions.

As in the reference everything is computed in float32 and rounded once. The last row of a chunk, which may sample, has
a tail of its own, computed in the same way whether the rows before it came with it or from the cache. In a shared range
it stands among the rows of others: how many they are decides the order in which a product adds up. That moves a
result by some 1e-6 of the largest, and in bfloat16 changes the last place of about one number in three thousand.

Rows are put in the order of the tree first, so that those below a range lie side by side.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.attention.backend import AttentionPlan, AttentionShape, LayerKV
from worker.attention.partial import PartialAttention, partial_attention
from worker.attention.scratch import KVScratch, kv_scratch
from worker.attention.sharing import SharedRange, shared_ranges
from worker.attention.spans import Call, SlotList, Span, View, attend_spans, range_spans, view_of
from worker.attention.stacking import Found, add_sinks, as_one_batch, from_one_batch, stack, unstack
from worker.attention.tails import Tail, TailsPlan
from worker.attention.torch_backend import TorchBackend
from worker.batch import Batch

Int64Array = NDArray[np.int64]

# Below this a range costs more, in products and merges, than it saves by reading fewer tokens.
MIN_SHARED_TOKENS = 64
MIN_SAVED_TOKENS = 384


class CascadeBackend:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._attention = partial_attention(device)
        self._scratch = kv_scratch(device)
        self._single = TorchBackend(device)

    def plan(self, batch: Batch) -> AttentionPlan:
        if batch.num_sequences == 1:
            return self._single.plan(batch)
        shared = shared_ranges(batch, min_tokens=MIN_SHARED_TOKENS, min_rows=2, min_saved=MIN_SAVED_TOKENS)
        order = _Order(batch, shared)
        ranges = [_RangePlan(batch, order, each, self._device) for each in shared]
        tails = TailsPlan(_tails(batch, order, shared), self._device)
        return CascadePlan(order.rows, tails, ranges, self._attention, self._scratch)


class CascadePlan:
    def __init__(
        self,
        rows: Int64Array | None,
        tails: TailsPlan,
        ranges: "Sequence[_RangePlan]",
        attention: Callable[[AttentionShape], PartialAttention],
        scratch: KVScratch,
    ) -> None:
        device = scratch.device
        self._scratch = scratch
        self._rows = None if rows is None else torch.from_numpy(rows).to(device)
        self._places = None if rows is None else torch.from_numpy(np.argsort(rows)).to(device)
        self._tails = tails
        self._ranges = ranges
        self._attention = attention

    def run(self, shape: AttentionShape, query: Tensor, kv: LayerKV, sinks: Tensor | None) -> Tensor:
        call = Call(shape, kv, self._attention(shape), self._scratch)
        stacked = stack(query if self._rows is None else query.index_select(0, self._rows), shape.kv_heads)
        found = self._tails.attend(call, stacked)
        for shared in self._ranges:
            shared.attend_into(call, stacked, found)
        out = unstack(found.out if sinks is None else add_sinks(found, sinks)).to(query.dtype)
        return out if self._places is None else out.index_select(0, self._places)


class _Order:
    """Sequences and rows in the order of the tree: those below a range are neighbours."""

    def __init__(self, batch: Batch, shared: Sequence[SharedRange]) -> None:
        paths: list[list[int]] = [[] for _ in range(batch.num_sequences)]
        for index, each in enumerate(shared):
            for sequence in each.sequences.tolist():
                paths[sequence].append(index)
        sequences = sorted(range(batch.num_sequences), key=paths.__getitem__)
        counts = np.diff(batch.qo_indptr)
        self.end_rows = np.empty_like(counts)  # of each sequence, in this order
        self.end_rows[sequences] = np.cumsum(counts[sequences])
        self.first_rows = self.end_rows - counts
        # int64[num_tokens], which row of the batch stands in each place; None: each in its own
        self.rows = None if sequences == sorted(sequences) else _joined_rows(batch, sequences)


class _RangePlan:
    """Rows of all sequences below a shared range, and the range."""

    def __init__(self, batch: Batch, order: _Order, shared: SharedRange, device: torch.device) -> None:
        begin = int(batch.kv_indptr[shared.sequences[0]])
        self._shared = shared
        self._device = device
        self._slots = SlotList(batch.kv_indices[begin + shared.first : begin + shared.end], device)
        self._place = slice(int(order.first_rows[shared.sequences].min()), int(order.end_rows[shared.sequences].max()))
        positions = batch.positions if order.rows is None else batch.positions[order.rows]
        self._positions = positions[self._place]
        self._spans: dict[View, list[Span]] = {}

    def attend_into(self, call: Call, query: Tensor, found: Found) -> None:
        """Merge what the rows below find in this range into what all rows have found elsewhere, in place."""
        view = view_of(call.shape)
        if view not in self._spans:
            shared = self._shared
            self._spans[view] = range_spans(shared.first, shared.end, self._positions, view, self._device)
        if not self._spans[view]:
            return
        rows = as_one_batch(query[:, self._place])
        part = from_one_batch(attend_spans(call, rows, self._slots, self._spans[view]), view.group)
        out, lse = found.out[:, self._place], found.lse[:, self._place]
        total = torch.logaddexp(lse, part.lse)
        out.mul_(torch.exp(lse - total)[..., None]).addcmul_(part.out, torch.exp(part.lse - total)[..., None])
        lse.copy_(total)


def _tails(batch: Batch, order: _Order, shared: Sequence[SharedRange]) -> list[Tail]:
    own = batch.kv_indptr[:-1].copy()  # where in kv_indices each sequence's own part begins
    for each in shared:
        own[each.sequences] = batch.kv_indptr[each.sequences] + each.end
    tails = []
    for first, end, begin, stop in zip(
        order.first_rows.tolist(), order.end_rows.tolist(), own.tolist(), batch.kv_indptr[1:].tolist(), strict=True
    ):
        kv_slots = batch.kv_indices[begin:stop]
        if first < end - 1:
            tails.append(Tail(first, end - 1, kv_slots[:-1]))
        tails.append(Tail(end - 1, end, kv_slots))
    return tails


def _joined_rows(batch: Batch, sequences: Sequence[int]) -> Int64Array:
    return np.concatenate([np.arange(batch.qo_indptr[i], batch.qo_indptr[i + 1]) for i in sequences])
