"""Runs the model over a slot pool: one forward pass per step, then one token for each row that samples."""

from dataclasses import replace
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
        """Compute a step; return the logits of the rows that sample, float32[samples, vocab_size].

        Of a row that several sample from, logits are computed once.
        """
        places = {sample.row: place for place, sample in enumerate(batch.samples)}
        if len(places) == len(batch.samples):
            return self._forward.logits(batch)
        distinct = tuple([batch.samples[place] for place in places.values()])
        logits = self._forward.logits(replace(batch, samples=distinct))
        order = {row: place for place, row in enumerate(places)}
        return logits[torch.tensor([order[sample.row] for sample in batch.samples], device=logits.device)]
