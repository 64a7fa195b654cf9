"""From a step to the batch that says so to the model. Knows numpy, and nothing of what a forward pass does with it.

What grows with the context, the slots, is kept by each lease in one array that only grows at its end. A batch needs
these arrays packed one behind the other, so a token more for each sequence moves all that follow: they are packed
anew for each step, by one copy of memory per sequence, into memory that is there already. Everything else is of the
size of the step and computed for all its tokens at once.
"""

from collections.abc import Sequence as SequenceOf

import numpy as np

from worker.batch import BASE_MODEL, Batch, Int32Array, SampleRow
from worker.engine.step import Chunk

_MIN_CAPACITY = 4096  # slot ids


class BatchBuilder:
    """Builds the batches of one engine.

    Two arrays of slot ids are filled in turn: a batch is valid until the next but one is built, so also while the
    one behind it is made ready.
    """

    def __init__(self) -> None:
        self._filled = np.empty(_MIN_CAPACITY, dtype=np.int32)
        self._free = np.empty(_MIN_CAPACITY, dtype=np.int32)

    def build(self, chunks: SequenceOf[Chunk]) -> Batch:
        """Return the batch that computes `chunks`, of which there is at least one, in their order."""
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int32)
        ends = np.array([chunk.end for chunk in chunks], dtype=np.int32)
        lengths = ends - starts
        qo_indptr = _indptr(lengths)
        kv_indptr = _indptr(ends)
        kv_indices = self._pack(chunks, int(kv_indptr[-1]))
        rows = np.arange(qo_indptr[-1], dtype=np.int32)
        return Batch(
            token_ids=_token_ids(chunks),
            positions=rows + np.repeat(starts - qo_indptr[:-1], lengths),
            # A chunk's tokens are the last ones that its sequence has slots for in this step.
            out_slots=kv_indices[rows + np.repeat(kv_indptr[1:] - qo_indptr[1:], lengths)],
            qo_indptr=qo_indptr,
            kv_indptr=kv_indptr,
            kv_indices=kv_indices,
            samples=_samples(chunks, qo_indptr),
            gates=tuple([gate for chunk in chunks if (gate := chunk.sequence.gate) is not None]),
            adapters=_adapters(chunks),
        )

    def _pack(self, chunks: SequenceOf[Chunk], num_slots: int) -> Int32Array:
        self._filled, self._free = self._free, self._filled
        if len(self._filled) < num_slots:
            self._filled = np.empty(max(num_slots, 2 * len(self._filled)), dtype=np.int32)
        packed = self._filled[:num_slots]
        np.concatenate([_slots(chunk) for chunk in chunks], out=packed)
        return packed


def _slots(chunk: Chunk) -> Int32Array:
    lease = chunk.sequence.lease
    assert lease is not None, "a sequence without slots is part of a step"
    slots = lease.slots
    return slots if len(slots) == chunk.end else slots[: chunk.end]


def _token_ids(chunks: SequenceOf[Chunk]) -> Int32Array:
    return np.concatenate([chunk.sequence.tokens(chunk.start, chunk.end) for chunk in chunks])


def _samples(chunks: SequenceOf[Chunk], qo_indptr: Int32Array) -> tuple[SampleRow, ...]:
    rows: list[SampleRow] = []
    for chunk, row in zip(chunks, qo_indptr[:-1].tolist(), strict=True):
        if chunk.samples or chunk.sequence.scores:
            rows += chunk.sequence.sample_rows(chunk.start, chunk.end, row)
    return tuple(rows)


def _adapters(chunks: SequenceOf[Chunk]) -> Int32Array | None:
    places = [chunk.sequence.adapter_place for chunk in chunks]
    if all(place is None for place in places):
        return None
    return np.array([BASE_MODEL if place is None else place for place in places], dtype=np.int32)


def _indptr(lengths: Int32Array) -> Int32Array:
    indptr = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=indptr[1:])
    return indptr
