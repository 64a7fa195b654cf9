"""A forward pass waits at its gate for each layer before that layer reads: what comes no earlier is found there."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from hicache.tiers.device import DevicePool
from tests.integration.flat_batches import GREEDY, executor_of
from tests.integration.tiny_models import tiny
from tests.native_kernels import require_kernels
from worker.batch import Batch, SampleRow
from worker.model.choosing import layer_shapes
from worker.model.executor import ModelExecutor
from worker.model.native_forward import NativeModel
from worker.model.plain_decoder import plain_decoder
from worker.model.probe import probe

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


def as_transformers_defines_it(model: PreTrainedModel) -> ModelExecutor:
    return executor_of(model, num_slots=32)


def in_native_code(model: PreTrainedModel) -> ModelExecutor:
    probed = probe(model)
    decoder = NativeModel(plain_decoder(model, probed, require_kernels(), threads=1))
    return ModelExecutor(decoder, DevicePool(layer_shapes(probed), 32, torch.float32, torch.device("cpu")))


@pytest.mark.parametrize("way", [as_transformers_defines_it, in_native_code])
def test_each_layer_finds_what_comes_when_it_waits(way: Callable[[PreTrainedModel], ModelExecutor]) -> None:
    executor = way(tiny("llama"))
    slots = np.random.default_rng(0).permutation(32).astype(np.int32)
    executor.logits(step(0, NUM_CACHED, slots))
    behind = step(NUM_CACHED, NUM_CACHED + NUM_NEW, slots)
    expected = executor.logits(behind)
    gate = LastMoment(executor.pool, torch.from_numpy(slots[:NUM_CACHED].astype(np.int64)))
    assert executor.logits(behind).isnan().any(), "without the gate nothing is there"
    got = executor.logits(replace(behind, gates=(gate,)))
    assert gate.waited == list(gate.layers)
    assert torch.equal(got, expected)


def test_a_step_waits_at_all_of_its_gates_and_at_each_once() -> None:
    executor = as_transformers_defines_it(tiny("llama"))
    slots = np.arange(32, dtype=np.int32)
    executor.logits(step(0, NUM_CACHED, slots))
    gates = [LastMoment(executor.pool, torch.from_numpy(part)) for part in (np.arange(5), np.arange(5, NUM_CACHED))]
    executor.logits(replace(step(NUM_CACHED, NUM_CACHED + 1, slots), gates=(gates[0], gates[1], gates[0])))
    assert [gate.waited for gate in gates] == [list(gates[0].layers)] * 2
