"""Many adapters in two products: their weights one below the other, and zeros where a row meets another's.

    x [rows, in] → inner = x · downsᵀ [rows, all ranks] → inner · mask → · upsᵀ [rows, out]

A row's mask holds its own adapter's scale in that adapter's columns, and zeros in all others. It costs products that
are thrown away, so it is for few rows. Stacking copies the weights, so a stack is kept while it serves.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from worker.lora.placed import PlacedAdapter, Rows
from worker.lora.weights import LowRank

# How much a stack may hold, as a multiple of what a step needs: what is too much costs in each step, a copy costs once.
_MAX_SLACK = 1.25

Columns = tuple[tuple[int, float], ...]
"""Rank and scale of each adapter of a stack in some layer, in order; rank 0 for those that don't change it."""


@dataclass(frozen=True, slots=True, eq=False)
class StackedLayer:
    downs: Tensor  # dtype[all ranks, in_features]
    ups: Tensor  # dtype[all ranks, out_features]
    columns: Columns


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    adapters: tuple[PlacedAdapter, ...]
    layers: Mapping[str, StackedLayer]  # by path
    scales: Mapping[Columns, Tensor]  # float32[adapters, all ranks]: an adapter's scale in its columns, else 0

    def serves(self, adapters: AbstractSet[PlacedAdapter]) -> bool:
        """Whether it holds them all, and not too much else."""
        return adapters <= set(self.adapters) and len(self.adapters) <= _MAX_SLACK * len(adapters)

    def masks(self, owners: Tensor) -> Mapping[Columns, Tensor]:
        """Return float32[rows, all ranks] for each arrangement of columns; `owners` int64[rows] index `adapters`."""
        return {columns: scales.index_select(0, owners) for columns, scales in self.scales.items()}


def stack_up(adapters: AbstractSet[PlacedAdapter]) -> Stack:
    ordered = tuple(adapters)
    paths = {path for adapter in ordered for path in adapter.modules}
    layers = {path: _stacked([adapter.modules.get(path) for adapter in ordered]) for path in paths}
    device = next(iter(layers.values())).downs.device
    scales = {columns: _scales(columns).to(device) for columns in {layer.columns for layer in layers.values()}}
    return Stack(ordered, layers, scales)


class StackedRows:
    """Rows of several adapters of a stack, in one layer."""

    def __init__(self, rows: Rows, mask: Tensor, layer: StackedLayer) -> None:
        self._rows = rows
        self._mask = mask
        self._layer = layer

    def add(self, x: Tensor, out: Tensor) -> None:
        inner = functional.linear(self._rows.taken_from(x), self._layer.downs)
        # Not by a product alone: what another adapter's weights make infinite is no number times 0.
        own = torch.where(self._mask == 0, 0.0, inner * self._mask)
        self._rows.add_product(out, own.to(inner.dtype), self._layer.ups)


def _stacked(modules: list[LowRank | None]) -> StackedLayer:
    present = [module for module in modules if module is not None]
    return StackedLayer(
        torch.cat([module.down for module in present]),
        torch.cat([module.up.t() for module in present]),
        tuple((0, 0.0) if module is None else (module.rank, module.scale) for module in modules),
    )


def _scales(columns: Columns) -> Tensor:
    scales = torch.zeros(len(columns), sum(rank for rank, _ in columns))
    begin = 0
    for adapter, (rank, scale) in enumerate(columns):
        scales[adapter, begin : begin + rank] = scale
        begin += rank
    return scales
