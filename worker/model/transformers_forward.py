"""Forward passes with the definitions of transformers: one flat row of tokens, attention over slots."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hicache.tiers.device import DevicePool
from worker.attention.backend import AttentionBackend, AttentionPlan, LayerKV
from worker.batch import Batch, Int32Array, LayerGate
from worker.lora.torch_bank import TorchAdapterBank
from worker.model.forward import handling_attention
from worker.model.layer_gate import AllGates
from worker.model.probe import ProbedLayer


@dataclass(frozen=True, slots=True)
class TransformersModel:
    """A model whose forward passes run as transformers defines them."""

    model: PreTrainedModel
    layers: tuple[ProbedLayer, ...]
    backend: AttentionBackend
    min_rows: int = 1  # fewer rows than this are never computed, see `steady_rows`
    adapters: TorchAdapterBank | None = None

    def over(self, pool: DevicePool) -> "TransformersForward":
        return TransformersForward(self, pool)

    def bank(self) -> TorchAdapterBank | None:
        return self.adapters


class TransformersForward:
    def __init__(self, definition: TransformersModel, pool: DevicePool) -> None:
        self._model = definition.model
        self._adapters = definition.adapters
        self._min_rows = definition.min_rows
        self._device = definition.model.device
        self._backend = definition.backend
        self._layers = {
            id(layer.module): _PooledLayer(index, layer, LayerKV(pool.key(index), pool.value(index)))
            for index, layer in enumerate(definition.layers)
        }

    def logits(self, batch: Batch) -> Tensor:
        with torch.inference_mode():
            gate = AllGates(batch.gates)
            run = _ForwardRun(self._layers, self._backend.plan(batch), self._tensor(batch.out_slots), gate)
            token_ids = self._rows(batch.token_ids)
            with handling_attention(run), self._adding(batch, len(token_ids)):
                output = self._model(
                    input_ids=token_ids[None],
                    position_ids=self._rows(batch.positions)[None],
                    use_cache=False,
                    logits_to_keep=self._rows([row.row for row in batch.samples]),
                )
            logits: Tensor = output.logits[0, : len(batch.samples)].float()
            return logits

    def _adding(self, batch: Batch, num_rows: int) -> AbstractContextManager[None]:
        """What makes the layers of a pass compute with the batch's adapters."""
        if batch.adapters is None:
            return nullcontext()
        if self._adapters is None:
            raise ValueError("a batch with adapters, for a model that has no bank for them")
        return self._adapters.adding(batch, num_rows)

    def _rows(self, values: Sequence[int] | Int32Array) -> Tensor:
        """Return int64[at least min_rows]: the last value again where there are fewer, nothing where there is none."""
        rows = self._tensor(values)
        missing = self._min_rows - len(rows)
        return torch.cat([rows, rows[-1:].expand(missing)]) if len(rows) and missing > 0 else rows

    def _tensor(self, values: object) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)


@dataclass(frozen=True, slots=True)
class _PooledLayer:
    """A layer, and where its keys and values lie."""

    index: int  # in the pool
    probed: ProbedLayer
    kv: LayerKV


class _ForwardRun:
    """Answers the attention calls of one forward pass: write the new K and V, then attend over the slots."""

    def __init__(
        self, layers: Mapping[int, _PooledLayer], plan: AttentionPlan, out_slots: Tensor, gate: LayerGate
    ) -> None:
        self._gate = gate
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
        pooled = self._layers[id(module)]
        layer, kv = pooled.probed, pooled.kv
        self._gate.wait(pooled.index)
        num_tokens = len(self._out_slots)
        kv.keys.index_copy_(0, self._out_slots, self._by_row(key, kv.keys))
        kv.values.index_copy_(0, self._out_slots, self._by_row(value, kv.values))
        sinks = arguments["s_aux"] if layer.shape.has_sinks else None
        assert sinks is None or isinstance(sinks, Tensor)
        out = self._plan.run(layer.shape, self._by_row(query, kv.keys), kv, sinks).to(query.dtype)
        # Padding is the last row again.
        padding = out[-1:].expand(query.shape[2] - num_tokens, -1, -1)
        return torch.cat([out, padding])[None] if len(padding) else out[None]

    def _by_row(self, states: Tensor, pool: Tensor) -> Tensor:
        """[1, heads, rows, dim] → the pool's dtype[num_tokens, heads, dim], without the padding."""
        return states[0].transpose(0, 1)[: len(self._out_slots)].to(pool.dtype)
