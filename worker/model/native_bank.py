"""LoRA adapters for forward passes in native code: packed at their place, as the products of a decoder read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker.batch import BASE_MODEL, Batch, Int32Array
from worker.lora.weights import AdapterWeights, LowRank
from worker.model.plain_decoder import PlainDecoder, row_addresses
from worker.native.library import AdapterSite, Handle, Pointers, int32

_MODULES: Mapping[AdapterSite, tuple[str, ...]] = {
    AdapterSite.QKV: ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    AdapterSite.OUT: ("self_attn.o_proj",),
    AdapterSite.GATE_UP: ("mlp.gate_proj", "mlp.up_proj"),
    AdapterSite.DOWN: ("mlp.down_proj",),
}
"""Of each product the modules that it consists of, their outputs below each other."""


class NativeBank:
    """Implements AdapterBank. An adapter is packed before it stands at its place, and freed when nobody reads it."""

    def __init__(self, decoder: PlainDecoder) -> None:
        self._decoder = decoder
        self._adapters: dict[int, Handle] = {}  # by place

    def put(self, place: int, adapter: AdapterWeights) -> None:
        native = self._decoder.native
        packed = native.adapter(self._decoder.num_layers)
        for layer in range(self._decoder.num_layers):
            for site in AdapterSite:
                self._pack(packed, layer, site, adapter)
        self._adapters[place] = packed

    def clear(self, place: int) -> None:
        self._adapters.pop(place, None)

    def of_step(self, batch: Batch) -> "StepAdapters | None":
        """Return the adapters that a batch names; None if it names none."""
        if batch.adapters is None:
            return None
        places, numbers = np.unique(batch.adapters, return_inverse=True)
        named = [self._adapters[int(place)] for place in places if place != BASE_MODEL]
        if places[0] == BASE_MODEL:
            numbers = numbers - 1  # it comes first, and is no adapter
        rows = np.repeat(numbers.astype(np.int32), np.diff(batch.qo_indptr))
        return StepAdapters(int32(rows), np.array([each.address for each in named], dtype=np.uint64), named)

    def _pack(self, packed: Handle, layer: int, site: AdapterSite, adapter: AdapterWeights) -> None:
        paths = [self._decoder.path(layer, module) for module in _MODULES[site]]
        shapes = [self._decoder.targets[path] for path in paths]
        modules = [adapter.modules.get(path) for path in paths]
        if all(module is None for module in modules):
            return
        down = torch.cat([module.down for module in modules if module is not None])
        up = _stacked(modules, [shape.out_features for shape in shapes])
        rank = up.shape[1]
        rows = np.zeros(rank, dtype=np.uint64)  # 0: zeros
        rows[: len(down)] = row_addresses(down)
        outputs = row_addresses(up)
        if site is AdapterSite.GATE_UP:
            half = len(outputs) // 2
            outputs = self._decoder.interleaved(outputs[:half], outputs[half:])
        self._decoder.native.set_adapter(
            packed, self._decoder.number, layer, site, rows, shapes[0].in_features, np.ascontiguousarray(outputs)
        )


@dataclass(frozen=True, slots=True)
class StepAdapters:
    """Arrays that a step in native code points to, and what they point to in turn."""

    rows: Int32Array  # int32[num_tokens]: which of `addresses`, or -1
    addresses: Pointers
    borrowed: list[Handle]


def _stacked(modules: Sequence[LowRank | None], outputs: Sequence[int]) -> Tensor:
    """Return [all outputs, rank of all modules, made even]: each module's scaled `up`, zeros where it has no part."""
    present = [module for module in modules if module is not None]
    rank = sum(module.rank for module in present)
    stacked = present[0].up.new_zeros(sum(outputs), rank + rank % 2)
    row = column = 0
    for module, num_outputs in zip(modules, outputs, strict=True):
        if module is not None:
            scaled = (module.up.float() * module.scale).to(stacked.dtype)
            stacked[row : row + num_outputs, column : column + module.rank] = scaled
            column += module.rank
        row += num_outputs
    return stacked
