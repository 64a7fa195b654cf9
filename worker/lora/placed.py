"""An adapter's weights on the device, and the rows of a step that are computed with some. Knows tensors only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from worker.lora.weights import AdapterWeights, LowRank


@dataclass(frozen=True, slots=True, eq=False)
class PlacedAdapter:
    """What lies at a place. Two of them are never equal: the same adapter brought again is another one."""

    modules: Mapping[str, LowRank]  # by the path of the linear layer; on the device


def brought(adapter: AdapterWeights, formats: Mapping[str, torch.dtype], device: torch.device) -> PlacedAdapter:
    """Copy an adapter to the device, each layer's part in that layer's number format.

    Where the device is the host, memory is shared and not copied.
    """
    return PlacedAdapter(
        {
            path: LowRank(module.down.to(device, formats[path]), module.up.to(device, formats[path]), module.scale)
            for path, module in adapter.modules.items()
        }
    )


class Rows:
    """Some rows of a step: a slice where they stand side by side, which costs no copy, else their numbers."""

    def __init__(self, numbers: "slice | Tensor") -> None:
        self._numbers = numbers  # int64[num_rows] if a tensor

    @classmethod
    def of(cls, runs: Sequence[slice], device: torch.device) -> "Rows":
        if all(before.stop == after.start for before, after in pairwise(runs)):
            return cls(slice(runs[0].start, runs[-1].stop))
        numbers = [number for run in runs for number in range(run.start, run.stop)]
        return cls(torch.tensor(numbers, dtype=torch.long, device=device))

    def taken_from(self, x: Tensor) -> Tensor:
        return x[self._numbers] if isinstance(self._numbers, slice) else x.index_select(0, self._numbers)

    def add_product(self, out: Tensor, left: Tensor, right: Tensor) -> None:
        """Add left · right to these rows of `out`, in place."""
        if isinstance(self._numbers, slice):
            out[self._numbers].addmm_(left, right)
        else:
            out.index_add_(0, self._numbers, left @ right)
