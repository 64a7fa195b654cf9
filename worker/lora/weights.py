"""An adapter's weights as values, and what is asked of whoever computes with them. Knows no files, no models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearShape:
    """A linear layer that adapters may change."""

    in_features: int
    out_features: int


Targets = Mapping[str, LinearShape]
"""By the path of the module in the model, as in `model.layers.0.self_attn.q_proj`."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one linear layer: x → scale · up (down x)."""

    down: Tensor  # dtype[rank, in_features], PEFT's lora_A; on the host, contiguous
    up: Tensor  # dtype[out_features, rank], PEFT's lora_B
    scale: float

    @property
    def rank(self) -> int:
        return int(self.down.shape[0])


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """All of an adapter, in the model's number format."""

    revision: str  # digest of weights and configuration, hexadecimal
    modules: Mapping[str, LowRank]  # by the path of the linear layer

    @property
    def rank(self) -> int:
        """The largest of its modules."""
        return max(module.rank for module in self.modules.values())

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for module in self.modules.values() for part in (module.down, module.up))


class AdapterBank(Protocol):
    """Holds adapters at numbered places, where the forward passes of one model find them.

    `put` and `clear` may be called beside a forward pass, from one other thread, for places that the pass doesn't name.
    """

    def put(self, place: int, adapter: AdapterWeights) -> None:
        """Bring the weights to `place`, in place of what was there. Raises where there is no memory for them."""
        ...

    def clear(self, place: int) -> None:
        """Free what lies at `place`, if anything does."""
        ...
