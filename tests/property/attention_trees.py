"""Batches whose sequences lie on a random radix tree, as a cache would hand out their slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worker.batch import Batch, Int32Array

# Around the edges of the blocks that kernels work in, and far from them.
EDGES = (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300)


@dataclass(frozen=True)
class TreeBatch:
    batch: Batch
    num_slots: int  # of the pool; some belong to nobody


def batch_of(paths: Sequence[Int32Array], num_rows: Sequence[int]) -> Batch:
    """Each sequence holds the slots of its path, and computes the last `num_rows` of them."""
    begins = [len(path) - rows for path, rows in zip(paths, num_rows, strict=True)]
    return Batch(
        token_ids=np.zeros(sum(num_rows), np.int32),
        positions=_joined([np.arange(begin, len(path)) for begin, path in zip(begins, paths, strict=True)]),
        out_slots=_joined([path[begin:] for begin, path in zip(begins, paths, strict=True)]),
        qo_indptr=np.cumsum([0, *num_rows]).astype(np.int32),
        kv_indptr=np.cumsum([0, *(len(path) for path in paths)]).astype(np.int32),
        kv_indices=_joined(paths),
        samples=(),
    )


def batch_on_a_tree(
    rng: np.random.Generator, *, num_sequences: int, max_tokens: int, page_size: int, scattered: bool, max_rows: int
) -> TreeBatch:
    """Each new sequence follows an earlier one for a while, or nobody, and goes on by itself.

    Some compute what others already hold the slots of: the keys are written before anybody attends. Sequences that
    share lie anywhere in the batch.
    """
    num_pages = num_sequences * (max_tokens // page_size + 1) + 2
    deck = rng.permutation(num_pages) if scattered else np.arange(num_pages)
    paths: list[Int32Array] = []
    for _ in range(num_sequences):
        shared = _beginning_of_one(rng, paths, max_tokens - 1, page_size)
        own = min(int(rng.choice(EDGES) if rng.random() < 0.6 else rng.integers(1, 400)), max_tokens - len(shared))
        pages, deck = np.split(deck, [-(-own // page_size)])
        slots = (pages[:, None] * page_size + np.arange(page_size)).reshape(-1)[:own]
        paths.append(_joined([shared, slots]))
    order = rng.permutation(num_sequences)
    num_rows = [_rows(rng, len(paths[index]), max_rows) for index in order]
    return TreeBatch(batch_of([paths[index] for index in order], num_rows), num_pages * page_size)


def _beginning_of_one(
    rng: np.random.Generator, paths: Sequence[Int32Array], max_tokens: int, page_size: int
) -> Int32Array:
    if not paths or rng.random() < 0.15:
        return np.zeros(0, np.int32)
    path = paths[int(rng.integers(len(paths)))]
    whole = rng.random() < 0.3
    length = min(len(path) if whole else int(rng.integers(0, len(path) + 1)), max_tokens)
    return path[: length // page_size * page_size]


def _rows(rng: np.random.Generator, length: int, max_rows: int) -> int:
    dice = rng.random()
    if dice < 0.5:
        return 1
    return length if dice < 0.55 and length <= max_rows else int(rng.integers(1, min(length, max_rows) + 1))


def _joined(parts: Sequence[np.ndarray]) -> Int32Array:
    return np.concatenate(parts).astype(np.int32)
