"""The reference backend: plain torch, any device, sequence by sequence.

It defines what attention over slots means; faster backends are compared with it. Of a sequence's keys it looks only
at those that some row of its chunk can see, in up to three parts::

    positions   0 .. | band ...... | middle ........ | chunk .. |
                     p-W           e-W               p          e      p, e: first position of the chunk, and behind it
    band: before the chunk, still inside the window for some of the rows     masked, at most as long as the chunk
    middle: before the chunk, inside the window for all of them              no mask (without a window: everything)
    chunk: what this step computes                                           causal mask, as large as the chunk

Everything is computed in float32 and rounded once, at the end, whatever the pool's dtype: how a prompt was cut into
chunks, and what of it was cached, must show as little as possible in a bfloat16 answer.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker.attention.backend import AttentionShape, LayerKV
from worker.attention.partial import Partial, PartialAttention, flash_cpu, hide, merge, tiled, works_flash_cpu
from worker.batch import Batch, Int32Array


class TorchBackend:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._has_flash = device.type == "cpu" and works_flash_cpu()

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
        return TorchPlan(tuple(parts), self._has_flash)


class TorchPlan:
    def __init__(self, parts: "tuple[RowsPlan, ...]", has_flash: bool) -> None:
        self._parts = parts
        self._has_flash = has_flash

    def run(self, shape: AttentionShape, query: Tensor, kv: LayerKV, sinks: Tensor | None) -> Tensor:
        fused = self._has_flash and shape.softcap is None and shape.key_dim == shape.value_dim
        attend: PartialAttention = flash_cpu if fused else tiled
        out = query.new_empty(query.shape[0], shape.query_heads, shape.value_dim)
        for part in self._parts:
            rows = slice(part.first_row, part.end_row)
            stacked = _stack(query[rows].float(), shape.kv_heads)
            found = part.attend(shape, stacked, kv, attend)
            result = found.out if sinks is None else _sink(found, sinks, shape.kv_heads)
            out[rows] = _unstack(result, shape.query_heads)
        return out


@dataclass(frozen=True, slots=True)
class _Span:
    """Keys of positions first..end-1 as the chunk sees them."""

    first: int
    end: int
    bias: Tensor | None = None  # float32[group * chunk rows, end - first]; None: every row sees every key
    blind: Tensor | None = None  # bool[group * chunk rows]: rows that see none of them; None: there are no such rows


@dataclass(frozen=True, slots=True)
class _View:
    """What the cut into spans depends on beside the sequence: layers with the same share it."""

    window: int | None
    group: int  # query heads per KV head


class RowsPlan:
    """Rows of one sequence that follow each other, their slots, and their spans for each window that occurs."""

    def __init__(self, first_row: int, end_row: int, kv_slots: Int32Array, device: torch.device) -> None:
        self.first_row = first_row
        self.end_row = end_row
        self._num_rows = end_row - first_row
        self._kv_len = len(kv_slots)
        self._device = device
        # A contiguous run is a view of the pool, nothing is gathered.
        self._first_slot = int(kv_slots[0]) if _is_run(kv_slots) else None
        self._slots = torch.from_numpy(kv_slots.astype(np.int32)).to(device)
        self._spans: dict[_View, list[_Span]] = {}

    def attend(self, shape: AttentionShape, query: Tensor, kv: LayerKV, attend: PartialAttention) -> Partial:
        """Return [kv_heads, group * rows, value_dim] for `query` [kv_heads, group * rows, key_dim], both float32."""
        view = _View(shape.window, shape.query_heads // shape.kv_heads)
        if view not in self._spans:
            self._spans[view] = self._cut(view)
        parts = []
        for span in self._spans[view]:
            part = attend(shape, query, self._read(kv.keys, span), self._read(kv.values, span), span.bias)
            parts.append(part if span.blind is None else hide(part, span.blind))
        return parts[0] if len(parts) == 1 else merge(parts)

    def _read(self, pool: Tensor, span: _Span) -> Tensor:
        """Return float32[heads, span length, dim]."""
        if self._first_slot is not None:
            found = pool[self._first_slot + span.first : self._first_slot + span.end]
        else:
            found = pool.index_select(0, self._slots[span.first : span.end])
        return found.float().transpose(0, 1)

    def _cut(self, view: _View) -> list[_Span]:
        end, window = self._kv_len, view.window
        chunk = end - self._num_rows
        middle = 0 if window is None else min(max(0, end - window), chunk)
        if self._num_rows == 1:
            # It sees itself and all before it that its window holds: one part, no mask.
            return [_Span(middle, end)]
        band = 0 if window is None else min(max(0, chunk + 1 - window), middle)
        spans = [_Span(chunk, end, self._bias(chunk, end, view))]
        if middle < chunk:
            spans.append(_Span(middle, chunk))
        if band < middle:
            bias = self._bias(band, middle, view)
            spans.append(_Span(band, middle, bias, blind=torch.isneginf(bias).all(dim=1)))
        return spans

    def _bias(self, first: int, end: int, view: _View) -> Tensor:
        keys = torch.arange(first, end, device=self._device)
        rows = torch.arange(self._kv_len - self._num_rows, self._kv_len, device=self._device)[:, None]
        hidden = keys > rows
        if view.window is not None:
            hidden |= keys <= rows - view.window
        bias = torch.zeros(hidden.shape, dtype=torch.float32, device=self._device)
        return bias.masked_fill_(hidden, float("-inf")).repeat(view.group, 1)


def _is_run(slots: Int32Array) -> bool:
    return bool(slots[-1] - slots[0] == len(slots) - 1 and (np.diff(slots) == 1).all())


def _stack(query: Tensor, kv_heads: int) -> Tensor:
    """[rows, query_heads, dim] → [kv_heads, group * rows, dim]: one product for all heads that share keys."""
    rows, query_heads, dim = query.shape
    return query.view(rows, kv_heads, query_heads // kv_heads, dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, dim)


def _unstack(out: Tensor, query_heads: int) -> Tensor:
    """[kv_heads, group * rows, dim] → [rows, query_heads, dim], a view."""
    return out.reshape(query_heads, -1, out.shape[-1]).transpose(0, 1)


def _sink(part: Partial, sinks: Tensor, kv_heads: int) -> Tensor:
    """Give each head's sink its share of the weight: out * e^lse / (e^lse + e^sink)."""
    lse = part.lse.reshape(sinks.shape[0], -1)
    share = torch.sigmoid(lse - sinks.float()[:, None])
    return part.out * share.reshape(kv_heads, -1, 1)
