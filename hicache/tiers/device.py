"""The device tier: tensors for K and V, layer first, addressed by slot. Knows shapes, no tokens and no tree."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One attention layer's heads. Keys and values may differ in width; layers may differ from each other."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def elements_per_token(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim)


class DevicePool:
    """KV of `num_slots` tokens. Which slot belongs to whom is the allocator's business.

    Zeroed at the start: a kernel that reads a slot before it was written, and multiplies it by a weight of 0, must not
    find NaN there. The memory is touched, so a pool that does not fit fails here and not at the first request.
    """

    def __init__(
        self, layers: Sequence[LayerShape], num_slots: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.layers = tuple(layers)
        self.num_slots = num_slots
        self.dtype = dtype
        self.device = torch.device(device)
        # Tensors made under inference_mode could not be written outside it: allocate ordinary ones, wherever we are.
        with torch.inference_mode(mode=False), torch.no_grad():
            self._keys = [self._zeros(layer.kv_heads, layer.key_dim) for layer in self.layers]
            self._values = [self._zeros(layer.kv_heads, layer.value_dim) for layer in self.layers]

    @property
    def bytes_per_token(self) -> int:
        return bytes_per_token(self.layers, self.dtype)

    def key(self, layer: int) -> Tensor:
        """K of one layer: [num_slots, kv_heads, key_dim]."""
        return self._keys[layer]

    def value(self, layer: int) -> Tensor:
        """V of one layer: [num_slots, kv_heads, value_dim]."""
        return self._values[layer]

    def _zeros(self, heads: int, dim: int) -> Tensor:
        return torch.zeros((self.num_slots, heads, dim), dtype=self.dtype, device=self.device)


def bytes_per_token(layers: Sequence[LayerShape], dtype: torch.dtype) -> int:
    """Return what one token's K and V take over all layers, to size a pool before it is made."""
    return sum(layer.elements_per_token for layer in layers) * dtype.itemsize
