"""How KV is laid out, in memory and in the bytes of a page. Knows shapes, no memory and no slots."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from hicache.tiers.shapes import LayerShape, bytes_per_token

__all__ = ["LayerShape", "Place", "PoolLayout", "bytes_per_token"]

# Part of `PoolLayout.describe`: raise it when the order of a page's bytes changes.
PAGE_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where the K or V of one layer lies: plane `plane` of group `group`."""

    group: int
    plane: int
    kv_heads: int
    dim: int


class PoolLayout:
    """Planes in groups. A plane is the K or the V of one layer; planes whose slots are equally wide make a group.

    One tensor holds a group: [planes, num_slots, width]. So a run of slots is copied for all layers of one width (in
    most models: all there are) by one strided copy, and each layer's K and V are still contiguous for attention:

        group 0    plane 0  K of layer 0    slot 0 | slot 1 | slot 2 | …
                   plane 1  V of layer 0    slot 0 | slot 1 | slot 2 | …
                   plane 2  K of layer 1    …

    Groups stand in the order in which layers first need them, K before V. A page's bytes have the same order: group by
    group, plane by plane, token by token; heads and dimensions of one token as in the tensors. They depend on nothing
    else: not on the slots, not on the size of the pool, not on the tier.
    """

    def __init__(self, layers: Sequence[LayerShape], dtype: torch.dtype) -> None:
        self.layers = tuple(layers)
        self.dtype = dtype
        planes: dict[int, int] = {}  # width → planes so far; the order of its keys is that of the groups
        self._places: list[tuple[Place, Place]] = []
        for layer in self.layers:
            pair = []
            for dim in (layer.key_dim, layer.value_dim):
                width = layer.kv_heads * dim
                plane = planes.setdefault(width, 0)
                planes[width] += 1
                pair.append(Place(list(planes).index(width), plane, layer.kv_heads, dim))
            self._places.append((pair[0], pair[1]))
        self.widths = tuple(planes)  # elements of one slot in each group's planes
        self.num_planes = tuple(planes.values())

    @property
    def bytes_per_token(self) -> int:
        return bytes_per_token(self.layers, self.dtype)

    def key(self, layer: int) -> Place:
        return self._places[layer][0]

    def value(self, layer: int) -> Place:
        return self._places[layer][1]

    def page_bytes(self, num_tokens: int) -> int:
        """Return how many bytes a page of `num_tokens` tokens has."""
        return num_tokens * self.bytes_per_token

    def describe(self) -> bytes:
        """Return what must be equal for two pools to understand each other's pages, the same in every process.

        Made to be hashed into the names of pages: a page of another model, dtype or byte order is never found.
        """
        shapes = " ".join(f"{each.kv_heads}x{each.key_dim}+{each.value_dim}" for each in self.layers)
        return f"radixgate.kv {PAGE_FORMAT} {self.dtype} {sys.byteorder} {shapes}".encode()
