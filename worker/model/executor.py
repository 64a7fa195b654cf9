"""Runs the model over a slot pool: one forward pass per step, then one token for each row that samples."""

from typing import Protocol

import torch
from torch import Tensor

from hicache.tiers.device import DevicePool
from worker.batch import Batch, SampledToken
from worker.lora.weights import AdapterBank
from worker.model.sampling import sample


class Forward(Protocol):
    """Computes steps over one pool."""

    def logits(self, batch: Batch) -> Tensor:
        """Write K and V of every token to its out slot; return float32[samples, vocab_size] of the rows that sample."""
        ...


class ForwardModel(Protocol):
    """A model with its weights, ready to compute over any pool of its layers' shapes."""

    def over(self, pool: DevicePool) -> Forward: ...

    def bank(self) -> AdapterBank | None:
        """Return where the adapters are put that its passes compute with; None if it can't have any."""
        ...


class ModelExecutor:
    """Implements the engine's Executor port. Owns what the pool holds; the engine decides which slot means what."""

    def __init__(self, model: ForwardModel, pool: DevicePool) -> None:
        self._forward = model.over(pool)
        self.pool = pool

    def run(self, batch: Batch) -> list[SampledToken]:
        with torch.inference_mode():
            return sample(self.logits(batch), batch.samples)

    def logits(self, batch: Batch) -> Tensor:
        """Compute a step; return the logits of the rows that sample, float32[samples, vocab_size]."""
        return self._forward.logits(batch)
