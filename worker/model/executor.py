"""Runs the model over a slot pool: one flat forward pass per step, then one token for each row that samples."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hicache.tiers.device import DevicePool
from worker.attention.backend import AttentionBackend, AttentionPlan, LayerKV
from worker.batch import Batch, SampledToken
from worker.model.forward import handling_attention
from worker.model.probe import ProbedLayer
from worker.model.sampling import sample


class ModelExecutor:
    """Implements the engine's Executor port. Owns what the pool holds; the engine decides which slot means what."""

    def __init__(
        self, model: PreTrainedModel, layers: Sequence[ProbedLayer], pool: DevicePool, backend: AttentionBackend
    ) -> None:
        self._model = model
        self._device = model.device
        self._backend = backend
        self.pool = pool
        self._layers = {
            id(layer.module): (layer, LayerKV(pool.key(index), pool.value(index))) for index, layer in enumerate(layers)
        }

    def run(self, batch: Batch) -> list[SampledToken]:
        with torch.inference_mode():
            return sample(self.logits(batch), batch.samples)

    def logits(self, batch: Batch) -> Tensor:
        """Compute a step; return the logits of the rows that sample, float32[samples, vocab_size]."""
        with torch.inference_mode():
            run = _ForwardRun(self._layers, self._backend.plan(batch), self._tensor(batch.out_slots))
            with handling_attention(run):
                output = self._model(
                    input_ids=self._tensor(batch.token_ids)[None],
                    position_ids=self._tensor(batch.positions)[None],
                    use_cache=False,
                    logits_to_keep=torch.tensor([s.row for s in batch.samples], dtype=torch.long, device=self._device),
                )
            logits: Tensor = output.logits[0].float()
            return logits

    def _tensor(self, values: object) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)


class _ForwardRun:
    """Answers the attention calls of one forward pass: write the new K and V, then attend over the slots."""

    def __init__(
        self, layers: Mapping[int, tuple[ProbedLayer, LayerKV]], plan: AttentionPlan, out_slots: Tensor
    ) -> None:
        self._layers = layers
        self._plan = plan
        self._out_slots = out_slots  # int64[num_tokens]

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        arguments: Mapping[str, object],
    ) -> Tensor:
        layer, kv = self._layers[id(module)]
        dtype = kv.keys.dtype
        kv.keys.index_copy_(0, self._out_slots, key[0].transpose(0, 1).to(dtype))
        kv.values.index_copy_(0, self._out_slots, value[0].transpose(0, 1).to(dtype))
        sinks = arguments["s_aux"] if layer.shape.has_sinks else None
        assert sinks is None or isinstance(sinks, Tensor)
        out = self._plan.run(layer.shape, query[0].transpose(0, 1).to(dtype), kv, sinks)
        return out[None].to(query.dtype)
