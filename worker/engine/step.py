"""One step as a value: which sequences compute which of their tokens, and the batch that says so to the model."""

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from worker.batch import Batch, Int32Array
from worker.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """A sequence's share of a step: its tokens [start, end). It samples if nothing known is left after them."""

    sequence: Sequence
    start: int
    end: int

    @property
    def samples(self) -> bool:
        return self.end == self.sequence.num_known


@dataclass(frozen=True, slots=True)
class Step:
    """What the scheduler decided; a decision only, the forward pass is still to be made."""

    chunks: tuple[Chunk, ...]
    admitted: tuple[Sequence, ...] = ()  # running now for the first time
    paused: tuple[Sequence, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(chunk.end - chunk.start for chunk in self.chunks)

    @property
    def sampling(self) -> tuple[Sequence, ...]:
        """The sequences that sample, in the order of the batch's samples."""
        return tuple(chunk.sequence for chunk in self.chunks if chunk.samples)


def batch_of(chunks: SequenceOf[Chunk]) -> Batch:
    """Return the batch that computes `chunks`, of which there is at least one, in their order."""
    slots = [_slots(chunk) for chunk in chunks]
    lengths = [chunk.end - chunk.start for chunk in chunks]
    qo_indptr = _indptr(lengths)
    return Batch(
        token_ids=np.concatenate([chunk.sequence.tokens(chunk.start, chunk.end) for chunk in chunks]),
        positions=np.concatenate([np.arange(chunk.start, chunk.end, dtype=np.int32) for chunk in chunks]),
        out_slots=np.concatenate([held[chunk.start :] for held, chunk in zip(slots, chunks, strict=True)]),
        qo_indptr=qo_indptr,
        kv_indptr=_indptr([chunk.end for chunk in chunks]),
        kv_indices=np.concatenate(slots),
        samples=tuple(
            chunk.sequence.sample_row(row=int(end) - 1)
            for chunk, end in zip(chunks, qo_indptr[1:], strict=True)
            if chunk.samples
        ),
    )


def _slots(chunk: Chunk) -> Int32Array:
    lease = chunk.sequence.lease
    assert lease is not None, "a sequence without slots is part of a step"
    return lease.slots[: chunk.end]


def _indptr(lengths: SequenceOf[int]) -> Int32Array:
    indptr = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=indptr[1:])
    return indptr
