"""A decode that never ends: the real model, a step at a time, on a pool that holds nothing in particular."""

from time import perf_counter

import numpy as np

from hicache.tiers.device import DevicePool
from worker.batch import Batch, SampleRow, SamplingParams
from worker.config import ModelConfig
from worker.model.loading import load_model
from worker.model.progress import SilentProgress

_GREEDY = SamplingParams(max_new_tokens=1, temperature=0.0)


class DecodeLoop:
    """Decodes the same token of `num_sequences` sequences again and again: every step costs the same."""

    def __init__(self, *, num_sequences: int, context_tokens: int, spare_slots: int) -> None:
        """The last `spare_slots` slots of the pool belong to no sequence."""
        model = load_model(ModelConfig(), SilentProgress())
        self._executor = model.executor(model.pool(num_sequences * context_tokens + spare_slots))
        self._batch = _decode_step(num_sequences, context_tokens)

    @property
    def pool(self) -> DevicePool:
        return self._executor.pool

    def seconds_per_step(self, steps: int) -> float:
        start = perf_counter()
        for _ in range(steps):
            self._executor.run(self._batch)
        return (perf_counter() - start) / steps


def _decode_step(num_sequences: int, context_tokens: int) -> Batch:
    """Each sequence's slots lie side by side; its last token is computed."""
    slots = np.arange(num_sequences * context_tokens, dtype=np.int32)
    return Batch(
        token_ids=np.full(num_sequences, 100, dtype=np.int32),
        positions=np.full(num_sequences, context_tokens - 1, dtype=np.int32),
        out_slots=slots[context_tokens - 1 :: context_tokens],
        qo_indptr=np.arange(num_sequences + 1, dtype=np.int32),
        kv_indptr=np.arange(num_sequences + 1, dtype=np.int32) * np.int32(context_tokens),
        kv_indices=slots,
        samples=tuple(
            SampleRow(row, _GREEDY, context_tokens, np.zeros(1, dtype=np.int32), []) for row in range(num_sequences)
        ),
    )
