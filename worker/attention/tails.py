"""What each row of a batch sees of its own sequence, beside what it shares: many short tails in few products.

A tail is rows of one sequence and the slots that they attend to, the last of them the rows' own. Long ones are computed
one by one. Short ones of about the same size are padded to the longest among them and computed together: a decode
of many sequences is a handful of products, not one for each of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from worker.attention.scratch import Scratch
from worker.attention.spans import Call, SlotList, View, attend_spans, chunk_spans, view_of
from worker.attention.stacking import Found, as_one_batch, from_one_batch
from worker.batch import Int32Array

# Keys of a tail that is still computed with others, and of all that are computed at once: what is gathered for a
# product should stay in the processor's caches.
SHORT_KEYS = 512
GATHERED_KEYS = 4096
# Rows times keys, likewise: where there is more to compute, padding costs more than it saves.
SHORT_PAIRS = 8192
_LARGE = (-1, -1)


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """Rows first_row..end_row-1 and their slots; the last row holds the last slot, the one before it the one before."""

    first_row: int
    end_row: int
    kv_slots: Int32Array

    @property
    def num_rows(self) -> int:
        return self.end_row - self.first_row

    def within(self, window: int | None) -> "Tail":
        """Return the same without slots that no row sees."""
        if window is None:
            return self
        seen = self.num_rows - 1 + window
        return Tail(self.first_row, self.end_row, self.kv_slots[-seen:])


class TailsPlan:
    """All tails of a batch: every row is in exactly one."""

    def __init__(self, tails: Sequence[Tail], device: torch.device) -> None:
        self._tails = tails
        self._device = device
        self._layouts: dict[View, _Layout] = {}

    def attend(self, call: Call, query: Tensor) -> Found:
        """Attend from `query`, float32[kv_heads, rows, group, key_dim]. The result may be written to."""
        view = view_of(call.shape)
        if view not in self._layouts:
            self._layouts[view] = _layout(self._tails, view, self._device)
        return self._layouts[view].attend(call, query)


class _Alone:
    """One tail, computed by itself."""

    def __init__(self, tail: Tail, view: View, device: torch.device) -> None:
        self.tails = (tail,)
        self.rows = tail.num_rows
        self._slots = SlotList(tail.kv_slots, device)
        self._spans = chunk_spans(len(tail.kv_slots), tail.num_rows, view, device)
        self._place = slice(tail.first_row, tail.end_row)
        self._group = view.group

    def attend(self, call: Call, query: Tensor) -> Found:
        part = attend_spans(call, as_one_batch(query[:, self._place]), self._slots, self._spans)
        return from_one_batch(part, self._group)


class _Together:
    """Tails side by side, each padded to the longest: rows by its last row, keys by its last slot, which is hidden."""

    def __init__(self, tails: Sequence[Tail], view: View, device: torch.device) -> None:
        self.tails = tails
        self.rows = max(tail.num_rows for tail in tails)
        self._group = view.group
        longest = max(len(tail.kv_slots) for tail in tails)
        slots = np.empty((len(tails), longest), np.int32)
        for padded, tail in zip(slots, tails, strict=True):
            padded[: len(tail.kv_slots)] = tail.kv_slots
            padded[len(tail.kv_slots) :] = tail.kv_slots[-1]
        counts = np.array([tail.num_rows for tail in tails])
        # Of each tail, which of its rows; its rows' places among its own slots; rows of the batch.
        within = np.minimum(np.arange(self.rows), counts[:, None] - 1)
        places = within + np.array([len(tail.kv_slots) - tail.num_rows for tail in tails])[:, None]
        rows = within + np.array([tail.first_row for tail in tails])[:, None]
        self._slots = torch.from_numpy(slots.reshape(-1)).to(device)
        self._rows = torch.from_numpy(rows.reshape(-1)).to(device)
        self._bias = _bias(torch.from_numpy(places).to(device), longest, view)

    def attend(self, call: Call, query: Tensor) -> Found:
        shape, size = call.shape, len(self.tails)
        stacked = query.index_select(1, self._rows).view(shape.kv_heads, size, -1, shape.key_dim).transpose(0, 1)
        keys, values = self._read(call.kv.keys, call.scratch.keys), self._read(call.kv.values, call.scratch.values)
        part = call.attend(shape, stacked, keys, values, self._bias)
        out, lse = part.out.transpose(0, 1), part.lse.transpose(0, 1)  # [kv_heads, tails, rows * group, ...]
        return Found(
            out.reshape(shape.kv_heads, -1, self._group, shape.value_dim),
            lse.reshape(shape.kv_heads, -1, self._group),
        )

    def _read(self, pool: Tensor, scratch: Scratch) -> Tensor:
        """Return float32[tails, heads, keys, dim]."""
        _, heads, dim = pool.shape
        return scratch.gather(pool, self._slots).view(len(self.tails), -1, heads, dim).transpose(1, 2)


class _Layout:
    """How tails are grouped for layers of one view, and where each row's result lies among all groups' results."""

    def __init__(self, groups: "Sequence[_Alone | _Together]", device: torch.device) -> None:
        self._groups = groups
        num_rows = sum(tail.num_rows for group in groups for tail in group.tails)
        places = np.empty(num_rows, np.int64)
        at = 0
        for group in groups:
            for tail in group.tails:
                places[tail.first_row : tail.end_row] = np.arange(at, at + tail.num_rows)
                at += group.rows
        in_order = at == num_rows and bool((places == np.arange(num_rows)).all())
        self._places = None if in_order else torch.from_numpy(places).to(device)

    def attend(self, call: Call, query: Tensor) -> Found:
        found = [group.attend(call, query) for group in self._groups]
        out, lse = found[0].out, found[0].lse
        if len(found) > 1:
            out, lse = torch.cat([each.out for each in found], dim=1), torch.cat([each.lse for each in found], dim=1)
        if self._places is not None:
            out, lse = out.index_select(1, self._places), lse.index_select(1, self._places)
        return Found(out, lse)


def _layout(tails: Sequence[Tail], view: View, device: torch.device) -> _Layout:
    cut = sorted((tail.within(view.window) for tail in tails), key=_size)
    groups: list[_Alone | _Together] = []
    for size, members in groupby(cut, key=_size):
        alike = list(members)
        at_once = 1 if size == _LARGE else max(1, GATHERED_KEYS // max(len(tail.kv_slots) for tail in alike))
        for begin in range(0, len(alike), at_once):
            some = alike[begin : begin + at_once]
            groups.append(_Alone(some[0], view, device) if len(some) == 1 else _Together(some, view, device))
    return _Layout(groups, device)


def _size(tail: Tail) -> tuple[int, int]:
    """Tails of one size are padded to less than twice their rows, and twice their keys or 32."""
    rows, keys = tail.num_rows, len(tail.kv_slots)
    if keys > SHORT_KEYS or rows * keys > SHORT_PAIRS:
        return _LARGE
    return (rows - 1).bit_length(), max(keys - 1, 31).bit_length()


def _bias(places: Tensor, num_keys: int, view: View) -> Tensor | None:
    """Return float32[tails, 1, rows * group, num_keys], or None where every row sees every key.

    `places`, int64[tails, rows], tells which key is a row's own: it sees no later one.
    """
    keys = torch.arange(num_keys, device=places.device)
    hidden = keys > places[..., None]
    if view.window is not None:
        hidden |= keys <= places[..., None] - view.window
    if not hidden.any():
        return None
    bias = torch.zeros(hidden.shape, dtype=torch.float32, device=places.device)
    return bias.masked_fill_(hidden, float("-inf")).repeat_interleave(view.group, 1)[:, None]
