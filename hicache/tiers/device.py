"""The device tier: tensors for K and V, layer first, addressed by slot. Knows shapes, no tokens and no tree."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hicache.keys import Int32Array
from hicache.tiers.layout import LayerShape, PoolLayout, bytes_per_token
from hicache.tiers.planes import Pages, Planes
from hicache.tiers.runs import check_slots

__all__ = ["DevicePool", "LayerShape", "bytes_per_token"]


class DevicePool:
    """KV of `num_slots` tokens. Which slot belongs to whom is the allocator's business.

    Zeroed at the start: a kernel that reads a slot before it was written, and multiplies it by a weight of 0, must not
    find NaN there. The memory is touched, so a pool that does not fit fails here and not at the first request.
    """

    def __init__(
        self, layers: Sequence[LayerShape], num_slots: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.num_slots = num_slots
        self.device = torch.device(device)
        self.planes = Planes(PoolLayout(layers, dtype), num_slots, self.device)
        self._pages = Pages(self.planes, "device") if self.device.type == "cpu" else None

    @property
    def layers(self) -> tuple[LayerShape, ...]:
        return self.planes.layout.layers

    @property
    def dtype(self) -> torch.dtype:
        return self.planes.layout.dtype

    @property
    def bytes_per_token(self) -> int:
        return self.planes.layout.bytes_per_token

    def key(self, layer: int) -> Tensor:
        """K of one layer, contiguous: [num_slots, kv_heads, key_dim]."""
        return self.planes.tensor(self.planes.layout.key(layer))

    def value(self, layer: int) -> Tensor:
        """V of one layer, contiguous: [num_slots, kv_heads, value_dim]."""
        return self.planes.tensor(self.planes.layout.value(layer))

    def layout(self) -> bytes:
        """Return what pages depend on besides their tokens; equal to the host pool's."""
        return self.planes.layout.describe()

    def read_page(self, slots: Int32Array) -> bytes:
        """Return the bytes of a page whose tokens lie in `slots`, see `PoolLayout`; what `HostPool.read_page` returns.

        On another device than the CPU this waits for it. Raises IndexError for slots that there are not.
        """
        if self._pages is not None:
            return self._pages.read(slots)
        check_slots(slots, self.num_slots, "device")
        return fetch_page(self.planes, slots)


def fetch_page(planes: Planes, slots: Int32Array) -> bytes:
    """Gather a page's bytes on the pool's own device and fetch them in one piece for each group."""
    index = torch.from_numpy(slots.astype("int64")).to(planes.device)
    pieces = [group.index_select(1, index).cpu().contiguous() for group in planes.groups]
    return b"".join(piece.view(torch.uint8).numpy().tobytes() for piece in pieces)
