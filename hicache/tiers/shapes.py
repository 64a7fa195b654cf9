"""What a token's KV takes, from the shapes of a model's layers. Arithmetic: no tensors, no memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class NumberFormat(Protocol):
    """What elements are stored as; torch's dtypes are such."""

    @property
    def itemsize(self) -> int:
        """Return the bytes of one element."""
        ...


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One attention layer's heads. Keys and values may differ in width; layers may differ from each other."""

    kv_heads: int
    key_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        if min(self.kv_heads, self.key_dim, self.value_dim) < 1:
            raise ValueError(f"a layer needs at least one head and one dimension, got {self}")

    @property
    def elements_per_token(self) -> int:
        return self.kv_heads * (self.key_dim + self.value_dim)


def bytes_per_token(layers: Sequence[LayerShape], dtype: NumberFormat) -> int:
    """Return what one token's K and V take over all layers, to size a pool before it is made."""
    return sum(layer.elements_per_token for layer in layers) * dtype.itemsize
