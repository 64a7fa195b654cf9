"""The reference backend: plain torch, any device, sequence by sequence.

It defines what attention over slots means; faster backends are compared with it. Everything is computed in float32 and
rounded once, at the end, whatever the pool's dtype: how a prompt was cut into chunks, and what of it was cached, must
show as little as possible in a bfloat16 answer.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from worker.attention.backend import AttentionShape, LayerKV
from worker.attention.partial import PartialAttention, partial_attention
from worker.attention.scratch import KVScratch, kv_scratch
from worker.attention.spans import Call, SlotList, Span, View, attend_spans, chunk_spans, view_of
from worker.attention.stacking import Found, add_sinks, as_one_batch, from_one_batch, stack, unstack
from worker.batch import Batch, Int32Array


class TorchBackend:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._attention = partial_attention(device)
        self._scratch = kv_scratch(device)

    def plan(self, batch: Batch) -> "TorchPlan":
        rows, slots = batch.qo_indptr.tolist(), batch.kv_indptr.tolist()
        parts = []
        for i in range(batch.num_sequences):
            kv_slots = batch.kv_indices[slots[i] : slots[i + 1]]
            # The last row, which may sample, is computed alone: the same arithmetic whether the rows before it came
            # with it or from the cache, so that a prompt has one answer in bfloat16 too.
            last = rows[i + 1] - 1
            if rows[i] < last:
                parts.append(RowsPlan(rows[i], last, kv_slots[:-1], self._device))
            parts.append(RowsPlan(last, last + 1, kv_slots, self._device))
        return TorchPlan(tuple(parts), self._attention, self._scratch)


class TorchPlan:
    def __init__(
        self,
        parts: "tuple[RowsPlan, ...]",
        attention: Callable[[AttentionShape], PartialAttention],
        scratch: KVScratch,
    ) -> None:
        self._parts = parts
        self._scratch = scratch
        self._attention = attention

    def run(self, shape: AttentionShape, query: Tensor, kv: LayerKV, sinks: Tensor | None) -> Tensor:
        call = Call(shape, kv, self._attention(shape), self._scratch)
        out = query.new_empty(query.shape[0], shape.query_heads, shape.value_dim)
        for part in self._parts:
            rows = slice(part.first_row, part.end_row)
            found = part.attend(call, stack(query[rows], shape.kv_heads))
            out[rows] = unstack(found.out if sinks is None else add_sinks(found, sinks))
        return out


class RowsPlan:
    """Rows of one sequence that follow each other, their slots, and their spans for each window that occurs."""

    def __init__(self, first_row: int, end_row: int, kv_slots: Int32Array, device: torch.device) -> None:
        """The rows hold the last of `kv_slots`, and see no key that is not among them."""
        self.first_row = first_row
        self.end_row = end_row
        self._kv_len = len(kv_slots)
        self._device = device
        self._slots = SlotList(kv_slots, device)
        self._spans: dict[View, list[Span]] = {}

    def attend(self, call: Call, query: Tensor) -> Found:
        """Attend from `query`, float32[kv_heads, rows, group, key_dim]: these rows alone."""
        view = view_of(call.shape)
        if view not in self._spans:
            self._spans[view] = chunk_spans(self._kv_len, self.end_row - self.first_row, view, self._device)
        part = attend_spans(call, as_one_batch(query), self._slots, self._spans[view])
        return from_one_batch(part, view.group)
