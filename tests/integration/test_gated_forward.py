"""A forward pass waits at its gate for each layer before that layer reads: what comes no earlier is found there."""

from dataclasses import replace

import numpy as np
import torch

from hicache.tiers.device import DevicePool
from tests.integration.flat_batches import GREEDY, executor_of
from tests.integration.tiny_models import tiny
from worker.batch import Batch, SampleRow

torch.set_num_threads(1)
NUM_CACHED, NUM_NEW = 9, 4


class LastMoment:
    """Puts a layer's content into the pool when it is waited for, and not before."""

    def __init__(self, pool: DevicePool, slots: torch.Tensor) -> None:
        self._pool, self._slots = pool, slots
        self._content = [(pool.key(layer)[slots].clone(), pool.value(layer)[slots].clone()) for layer in self.layers]
        self.waited: list[int] = []
        for group in pool.planes.groups:
            group.fill_(float("nan"))

    @property
    def layers(self) -> range:
        return range(len(self._pool.layers))

    def wait(self, layer: int) -> None:
        self.waited.append(layer)
        self._pool.key(layer)[self._slots], self._pool.value(layer)[self._slots] = self._content[layer]


def step(first: int, end: int, slots: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> Batch:
    """Compute tokens first..end - 1 of one sequence."""
    tokens = np.arange(5, 5 + end, dtype=np.int32)
    return Batch(
        token_ids=tokens[first:],
        positions=np.arange(first, end, dtype=np.int32),
        out_slots=slots[first:end],
        qo_indptr=np.array([0, end - first], np.int32),
        kv_indptr=np.array([0, end], np.int32),
        kv_indices=slots[:end],
        samples=(SampleRow(end - first - 1, GREEDY, end, tokens, []),),
    )


def test_each_layer_finds_what_comes_when_it_waits() -> None:
    executor = executor_of(tiny("llama"), num_slots=32)
    slots = np.random.default_rng(0).permutation(32).astype(np.int32)
    executor.logits(step(0, NUM_CACHED, slots))
    behind = step(NUM_CACHED, NUM_CACHED + NUM_NEW, slots)
    expected = executor.logits(behind)
    gate = LastMoment(executor.pool, torch.from_numpy(slots[:NUM_CACHED].astype(np.int64)))
    assert executor.logits(behind).isnan().any(), "without the gate nothing is there"
    got = executor.logits(replace(behind, gates=(gate,)))
    assert gate.waited == list(gate.layers)
    assert torch.equal(got, expected)
