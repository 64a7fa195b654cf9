"""The memory of one pool: a tensor for each group of planes. Knows slots and shapes, no tokens and no tree."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hicache.keys import Int32Array
from hicache.tiers.layout import Place, PoolLayout
from hicache.tiers.memory import allocate
from hicache.tiers.runs import SHORT_RUN_TOKENS, check_slots, runs_between

# void[planes, num_slots]: one element is all of a slot in one plane, so that slices and indices copy whole slots.
SlotArray = NDArray[np.void]


class Planes:
    """KV of `num_slots` tokens in groups of planes, see `PoolLayout`.

    Zeroed, and touched: what does not fit fails here. Raises MemoryError, or what torch raises on other devices.
    """

    def __init__(self, layout: PoolLayout, num_slots: int, device: torch.device) -> None:
        self.layout = layout
        self.num_slots = num_slots
        self.device = device
        # Tensors made under inference_mode could not be written outside it: allocate ordinary ones, wherever we are.
        with torch.inference_mode(mode=False), torch.no_grad():
            self.groups = tuple(
                self._zeros(planes, width) for planes, width in zip(layout.num_planes, layout.widths, strict=True)
            )

    def tensor(self, place: Place) -> Tensor:
        """One plane, contiguous: [num_slots, kv_heads, dim]."""
        return self.groups[place.group][place.plane].view(self.num_slots, place.kv_heads, place.dim)

    def slot_arrays(self) -> tuple[SlotArray, ...]:
        """The same memory for numpy, group by group; main memory only."""
        return tuple(
            group.view(torch.uint8).numpy().view(np.dtype((np.void, width * self.layout.dtype.itemsize)))[..., 0]
            for group, width in zip(self.groups, self.layout.widths, strict=True)
        )

    def _zeros(self, planes: int, width: int) -> Tensor:
        shape = (planes, self.num_slots, width)
        if self.device.type != "cpu":
            return torch.zeros(shape, dtype=self.layout.dtype, device=self.device)
        num_bytes = planes * self.num_slots * width * self.layout.dtype.itemsize
        return allocate(num_bytes).view(self.layout.dtype).view(shape)


class Pages:
    """Reads and writes the bytes of pages in main memory, see `PoolLayout`. Any thread may; slots are the caller's."""

    def __init__(self, planes: Planes, side: str) -> None:
        self._layout = planes.layout
        self._num_slots = planes.num_slots
        self._arrays = planes.slot_arrays()
        self._side = side

    def read(self, slots: Int32Array) -> bytes:
        """Return the page of these tokens. Raises IndexError for slots that there are not."""
        check_slots(slots, self._num_slots, self._side)
        page = np.empty(self._layout.page_bytes(len(slots)), dtype=np.uint8)
        copy_slots(self._arrays, self._of_page(page, len(slots)), slots, _in_order(len(slots)))
        return page.tobytes()

    def write(self, slots: Int32Array, page: bytes) -> None:
        """Put a page's tokens into `slots`.

        Raises ValueError if the page has not the bytes of so many tokens, IndexError for slots that there are not.
        """
        check_slots(slots, self._num_slots, self._side)
        if len(page) != self._layout.page_bytes(len(slots)):
            raise ValueError(
                f"a page of {len(slots)} tokens has {self._layout.page_bytes(len(slots))} bytes, got {len(page)}"
            )
        content = self._of_page(np.frombuffer(page, dtype=np.uint8), len(slots))
        copy_slots(content, self._arrays, _in_order(len(slots)), slots)

    def _of_page(self, page: NDArray[np.uint8], num_tokens: int) -> list[SlotArray]:
        """The page's bytes as if they were a pool of `num_tokens` slots."""
        arrays: list[SlotArray] = []
        start = 0
        for pool in self._arrays:
            end = start + len(pool) * num_tokens * pool.dtype.itemsize
            arrays.append(page[start:end].view(pool.dtype).reshape(len(pool), num_tokens))
            start = end
        return arrays


def copy_slots(
    source: Sequence[SlotArray], target: Sequence[SlotArray], source_slots: Int32Array, target_slots: Int32Array
) -> None:
    """Copy slots between pools of one layout, in all planes; other threads run meanwhile.

    numpy, not torch: its strided copies of short runs are faster on one thread, copies by index are twice as fast
    (`index_copy_` is the slow one), and no pool of compute threads is woken up beside a forward pass.
    """
    runs = runs_between(source_slots, target_slots)
    if len(source_slots) < SHORT_RUN_TOKENS * len(runs):
        for of, to in zip(source, target, strict=True):
            to[:, target_slots] = of[:, source_slots]
        return
    for first, second, num_slots in runs:
        for of, to in zip(source, target, strict=True):
            to[:, second : second + num_slots] = of[:, first : first + num_slots]


def _in_order(num_slots: int) -> Int32Array:
    return np.arange(num_slots, dtype=np.int32)
