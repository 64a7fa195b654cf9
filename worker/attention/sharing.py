"""Which sequences of a batch attend to the same keys: the radix tree as far as one step can see it.

Knows batches and numbers, no tensors and no tree. A slot has one owner, so equal slots at equal positions hold the same
keys and values: two sequences share what their slot lists have in common at the beginning. Of the tree that these
lists form, each node is a range of positions and the sequences below it::

    sequence 0   a a a a b b b b d            range 0..4 of sequences 0, 1, 2
    sequence 1   a a a a b b b b e            range 4..8 of sequences 0, 1
    sequence 2   a a a a c c c c c

What a step computes itself belongs to no range: rows of a range lie behind all of it, so none of them needs a mask.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from worker.batch import Batch, Int32Array

_SLOT_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class SharedRange:
    """Positions first..end-1, whose slots are the same in all of `sequences`."""

    sequences: Int32Array  # int32[at least 2], indices into the batch, ascending
    first: int  # 0, or where the range above it ends
    end: int


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A sequence that may share something."""

    slots: bytes  # int32 each, of the positions before its chunk
    sequence: int
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worth:
    """What makes a range worth having."""

    min_tokens: int
    min_rows: int
    min_saved: int

    def __contains__(self, found: tuple[int, int, int]) -> bool:
        tokens, sequences, rows = found
        return tokens >= self.min_tokens and rows >= self.min_rows and tokens * (sequences - 1) >= self.min_saved


def shared_ranges(
    batch: Batch, *, min_tokens: int, min_rows: int, multiple_of: int = 1, min_saved: int = 0
) -> tuple[SharedRange, ...]:
    """Return what sequences of `batch` share, outer ranges before inner ones.

    A range has at least `min_tokens` tokens, at least two sequences and, over all of them, at least `min_rows` rows;
    it saves reading at least `min_saved` tokens, and ends at a multiple of `multiple_of`. Ranges nest: for each
    position a sequence is in at most one of them, and its ranges cover an unbroken run of positions from 0.
    """
    candidates = sorted(_candidates(batch, max(min_tokens, 1), multiple_of), key=lambda each: each.slots)
    if len(candidates) < 2:
        return ()
    common = [length // multiple_of * multiple_of for length in _common_lengths(candidates)]
    worth = _Worth(min_tokens=max(min_tokens, 1), min_rows=min_rows, min_saved=min_saved)
    return tuple(_nodes(candidates, common, worth))


def _candidates(batch: Batch, min_tokens: int, multiple_of: int) -> list[_Candidate]:
    """Whoever has a companion with the same slots at two places that every range covers; most often there is none."""
    num_rows = np.diff(batch.qo_indptr)
    starts = batch.kv_indptr[:-1]
    lengths = (np.diff(batch.kv_indptr) - num_rows) // multiple_of * multiple_of
    long_enough = np.flatnonzero(lengths >= min_tokens)
    starts = starts[long_enough]
    probes = list(
        zip(batch.kv_indices[starts].tolist(), batch.kv_indices[starts + min_tokens - 1].tolist(), strict=True)
    )
    seen: dict[tuple[int, int], int] = {}
    for probe in probes:
        seen[probe] = seen.get(probe, 0) + 1
    if len(seen) == len(probes):
        return []
    rows = zip(
        probes,
        long_enough.tolist(),
        starts.tolist(),
        lengths[long_enough].tolist(),
        num_rows[long_enough].tolist(),
        strict=True,
    )
    return [
        _Candidate(batch.kv_indices[start : start + length].tobytes(), sequence, count)
        for probe, sequence, start, length, count in rows
        if seen[probe] > 1
    ]


def _common_lengths(candidates: Sequence[_Candidate]) -> list[int]:
    """Return how many slots at the beginning each candidate has in common with the next."""
    lengths = []
    guess = 0
    for one, other in pairwise(candidates):
        guess = _common_bytes(one.slots, other.slots, guess)
        lengths.append(guess // _SLOT_BYTES)
    return lengths


def _common_bytes(one: bytes, other: bytes, guess: int) -> int:
    """`guess`: neighbours often part where the two before them did, and that is soon compared."""
    limit = min(len(one), len(other))
    behind = guess + _SLOT_BYTES
    if behind <= limit and one[guess:behind] != other[guess:behind] and one[:guess] == other[:guess]:
        return guess
    if one[:limit] == other[:limit]:
        return limit
    slots = limit // _SLOT_BYTES
    differing = np.frombuffer(one, np.int32, slots) != np.frombuffer(other, np.int32, slots)
    return int(differing.argmax()) * _SLOT_BYTES


def _nodes(candidates: Sequence[_Candidate], common: Sequence[int], worth: _Worth) -> Iterator[SharedRange]:
    """Walk the tree of sorted candidates from its root: each node is a run of neighbours."""
    pending = [(0, len(candidates), 0)]
    while pending:
        begin, stop, first = pending.pop()
        if stop - begin < 2:
            continue
        end = min(common[begin : stop - 1])
        members = candidates[begin:stop]
        if (end - first, len(members), sum(member.num_rows for member in members)) in worth:
            yield SharedRange(np.array(sorted(member.sequence for member in members), np.int32), first, end)
            first = end
        cuts = [begin, *(index + 1 for index in range(begin, stop - 1) if common[index] == end), stop]
        pending.extend((left, right, first) for left, right in pairwise(cuts))
