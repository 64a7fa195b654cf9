"""Where keys and values are brought together as float32 before they are attended to.

Memory that is written again and again: fresh pages would cost several times what is copied into them. Of one thread,
and of one stream where there are streams; what is read is valid until the next read into the same scratch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


class Scratch:
    """Room for one tensor at a time, as large as the largest so far."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rooms: dict[torch.dtype, Tensor] = {}

    def floats(self, rows: Tensor) -> Tensor:
        """Return `rows`, dtype[num_slots, heads, dim], as float32: themselves if they are."""
        if rows.dtype == torch.float32:
            return rows
        return self._room(rows.shape, torch.float32).copy_(rows)

    def gather(self, pool: Tensor, slots: Tensor) -> Tensor:
        """Return float32[len(slots), heads, dim] of the pool's rows at `slots`."""
        room = self._room(torch.Size((len(slots), *pool.shape[1:])), pool.dtype)
        return self.floats(torch.index_select(pool, 0, slots, out=room))

    def _room(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        room = self._rooms.get(dtype)
        if room is None or len(room) < shape.numel():
            # A tensor made in inference mode could not be written to outside of it.
            with torch.inference_mode(mode=False):
                room = torch.empty(shape.numel(), dtype=dtype, device=self._device)
            self._rooms[dtype] = room
        return room[: shape.numel()].view(shape)


@dataclass(frozen=True, slots=True)
class KVScratch:
    """One room for keys and one for values: both are needed at once."""

    device: torch.device
    keys: Scratch
    values: Scratch


def kv_scratch(device: torch.device) -> KVScratch:
    return KVScratch(device, Scratch(device), Scratch(device))
