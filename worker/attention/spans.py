"""Stretches of positions as some rows see them: which keys, and behind which mask.

Knows the rule of causality and windows, and where positions lie in a pool; nothing of batches. Of the keys of a
sequence, the rows of its chunk look at up to three stretches::

    positions   0 .. | band ...... | middle ........ | chunk .. |
                     p-W           e-W               p          e      p, e: first position of the chunk, and behind it
    band: before the chunk, still inside the window for some of the rows     masked, at most as long as the chunk
    middle: before the chunk, inside the window for all of them              no mask (without a window: everything)
    chunk: what this step computes                                           causal mask, as large as the chunk
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker.attention.backend import AttentionShape, LayerKV
from worker.attention.partial import Partial, PartialAttention, hide, merge
from worker.attention.scratch import KVScratch, Scratch
from worker.batch import Int32Array


@dataclass(frozen=True, slots=True)
class View:
    """What masks depend on beside the batch: layers with the same share them."""

    window: int | None
    group: int  # query heads per KV head


@dataclass(frozen=True, slots=True)
class Span:
    """Keys of positions first..end-1 as some rows see them."""

    first: int
    end: int
    bias: Tensor | None = None  # float32[1, 1, rows * group, end - first]; None: every row sees every key
    blind: Tensor | None = None  # bool[rows * group]: rows that see none of them; None: there are no such rows


class SlotList:
    """The slots of positions that follow each other, ready to be read from a pool."""

    def __init__(self, slots: Int32Array, device: torch.device) -> None:
        # A contiguous run is a view of the pool, nothing is gathered.
        self._first_slot = int(slots[0]) if _is_run(slots) else None
        self._slots = torch.from_numpy(slots).to(device) if self._first_slot is None else None

    def read(self, pool: Tensor, first: int, end: int, scratch: Scratch) -> Tensor:
        """Return float32[1, heads, end - first, dim] of the list's places first..end-1."""
        if self._slots is None:
            assert self._first_slot is not None
            found = scratch.floats(pool[self._first_slot + first : self._first_slot + end])
        else:
            found = scratch.gather(pool, self._slots[first:end])
        return found.transpose(0, 1)[None]


def view_of(shape: AttentionShape) -> View:
    return View(shape.window, shape.query_heads // shape.kv_heads)


@dataclass(frozen=True, slots=True)
class Call:
    """What all parts of one layer's attention have in common."""

    shape: AttentionShape
    kv: LayerKV
    attend: PartialAttention
    scratch: KVScratch


def attend_spans(call: Call, query: Tensor, slots: SlotList, spans: Sequence[Span]) -> Partial:
    """Attend from `query`, float32[1, kv_heads, rows * group, key_dim], to at least one span."""
    parts = []
    for span in spans:
        keys = slots.read(call.kv.keys, span.first, span.end, call.scratch.keys)
        values = slots.read(call.kv.values, span.first, span.end, call.scratch.values)
        part = call.attend(call.shape, query, keys, values, span.bias)
        parts.append(part if span.blind is None else hide(part, span.blind))
    return parts[0] if len(parts) == 1 else merge(parts)


def chunk_spans(kv_len: int, num_rows: int, view: View, device: torch.device) -> list[Span]:
    """Return what the last `num_rows` of `kv_len` positions see of all of them."""
    window = view.window
    chunk = kv_len - num_rows
    middle = 0 if window is None else min(max(0, kv_len - window), chunk)
    if num_rows == 1:
        # It sees itself and all before it that its window holds: one part, no mask.
        return [Span(middle, kv_len)]
    rows = torch.arange(chunk, kv_len, device=device)
    band = 0 if window is None else min(max(0, chunk + 1 - window), middle)
    spans = [Span(chunk, kv_len, _bias(chunk, kv_len, rows, view))]
    if middle < chunk:
        spans.append(Span(middle, chunk))
    if band < middle:
        spans.append(_masked(band, middle, rows, view))
    return spans


def range_spans(first: int, end: int, positions: Int32Array, view: View, device: torch.device) -> list[Span]:
    """Return what rows at `positions`, all of them >= end, see of positions first..end-1, counted from `first`.

    Nothing where windows have left them behind.
    """
    if view.window is None:
        return [Span(0, end - first)]
    lengths = end - first
    visible = positions.astype(np.int64) - view.window + 1 - first  # each row sees the places from here on
    some, all_of_them = max(0, int(visible.min())), max(0, int(visible.max()))
    spans = []
    if all_of_them < lengths:
        spans.append(Span(all_of_them, lengths))
    if some < min(all_of_them, lengths):
        rows = torch.from_numpy(positions.astype(np.int64) - first).to(device)
        spans.append(_masked(some, min(all_of_them, lengths), rows, view))
    return spans


def _masked(first: int, end: int, rows: Tensor, view: View) -> Span:
    bias = _bias(first, end, rows, view)
    return Span(first, end, bias, blind=torch.isneginf(bias[0, 0]).all(dim=1))


def _bias(first: int, end: int, rows: Tensor, view: View) -> Tensor:
    """Return float32[1, 1, len(rows) * group, end - first] for rows at the places `rows`."""
    keys = torch.arange(first, end, device=rows.device)
    hidden = keys > rows[:, None]
    if view.window is not None:
        hidden |= keys <= rows[:, None] - view.window
    bias = torch.zeros(hidden.shape, dtype=torch.float32, device=rows.device)
    return bias.masked_fill_(hidden, float("-inf")).repeat_interleave(view.group, 0)[None, None]


def _is_run(slots: Int32Array) -> bool:
    return bool(slots[-1] - slots[0] == len(slots) - 1 and (np.diff(slots) == 1).all())
