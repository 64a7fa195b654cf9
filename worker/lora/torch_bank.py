"""LoRA in models that run as modules: deltas are added to the rows of those sequences that have an adapter.

The base product is computed once, for all rows, by the model's own layers; a hook on each layer that some adapter of
the step changes adds to its result, in place. Rows of the base model are not touched, and a step without adapters runs
without hooks. A few rows of many adapters are computed in one product (`stacks`), longer runs of rows one by one.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby, pairwise
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from worker.batch import BASE_MODEL, Batch
from worker.lora.placed import PlacedAdapter, Rows, brought
from worker.lora.stacks import Stack, StackedRows, stack_up
from worker.lora.weights import AdapterWeights, LowRank

# From how many rows on an adapter's own two products are faster than its part of a stack's, with its zeros.
_LONG_RUN_ROWS = 64


class Addition(Protocol):
    """What is added to a layer's result in one step."""

    def add(self, x: Tensor, out: Tensor) -> None:
        """`x` dtype[rows, in_features], `out` dtype[rows, out_features] of the whole step; changes rows of `out`."""
        ...


class TorchAdapterBank:
    """Implements AdapterBank. Owns the device's copies of adapters.

    `put` and `clear` come from another thread than `adding`: a place is one entry of a dictionary, complete from when
    it stands there. On CUDA, copies and passes share the default stream, which keeps them in order.
    """

    def __init__(self, model: nn.Module, paths: Iterable[str], dtype: torch.dtype, device: torch.device) -> None:
        self._layers: Mapping[str, nn.Module] = {path: model.get_submodule(path) for path in paths}
        self._formats = {path: _number_format(layer, dtype) for path, layer in self._layers.items()}
        self._device = device
        self._placed: dict[int, PlacedAdapter] = {}
        self._stack: Stack | None = None  # the last one: steps mostly have the same adapters as the step before

    def put(self, place: int, adapter: AdapterWeights) -> None:
        self.clear(place)  # first: there may be no memory for both
        self._placed[place] = brought(adapter, self._formats, self._device)

    def clear(self, place: int) -> None:
        removed = self._placed.pop(place, None)
        stack = self._stack
        if removed is not None and stack is not None and removed in stack.adapters:
            self._stack = None

    @contextmanager
    def adding(self, batch: Batch, num_rows: int) -> Iterator[None]:
        """Within the `with` block, a forward pass over `num_rows` rows adds what the adapters of `batch` add.

        Rows behind those of the batch are padding. Raises KeyError for a place where no adapter lies.
        """
        handles = []
        try:
            for path, additions in self._additions(batch).items():
                hook = _Hook(num_rows, additions)
                handles.append(self._layers[path].register_forward_hook(hook))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _additions(self, batch: Batch) -> Mapping[str, list[Addition]]:
        """By path of the layer; empty if the batch has no adapters."""
        long, short = list[tuple[slice, PlacedAdapter]](), list[tuple[slice, PlacedAdapter]]()
        for rows, place in _runs(batch):
            runs = long if rows.stop - rows.start >= _LONG_RUN_ROWS else short
            runs.append((rows, self._placed[place]))
        if len({adapter for _, adapter in short}) < 2:
            long, short = long + short, []
        additions: dict[str, list[Addition]] = {}
        for rows, adapter in long:
            for path, module in adapter.modules.items():
                additions.setdefault(path, []).append(_Run(rows, module))
        if short:
            self._add_stacked(short, additions)
        return additions

    def _add_stacked(self, runs: list[tuple[slice, PlacedAdapter]], additions: dict[str, list[Addition]]) -> None:
        stack = self._stack_of({adapter for _, adapter in runs})
        order = {adapter: index for index, adapter in enumerate(stack.adapters)}
        rows = Rows.of([rows for rows, _ in runs], self._device)
        owners = [order[adapter] for rows, adapter in runs for _ in range(rows.stop - rows.start)]
        masks = stack.masks(torch.tensor(owners, dtype=torch.long, device=self._device))
        wanted = {path for _, adapter in runs for path in adapter.modules}
        for path in wanted:
            layer = stack.layers[path]
            additions.setdefault(path, []).append(StackedRows(rows, masks[layer.columns], layer))

    def _stack_of(self, adapters: set[PlacedAdapter]) -> Stack:
        stack = self._stack
        if stack is None or not stack.serves(adapters):
            stack = stack_up(adapters)
            self._stack = stack
        return stack


class _Run:
    """A run of rows with one adapter."""

    def __init__(self, rows: slice, module: LowRank) -> None:
        self._rows = rows
        self._module = module

    def add(self, x: Tensor, out: Tensor) -> None:
        module = self._module
        out[self._rows].addmm_(functional.linear(x[self._rows], module.down), module.up.t(), alpha=module.scale)


class _Hook:
    def __init__(self, num_rows: int, additions: list[Addition]) -> None:
        self._num_rows = num_rows
        self._additions = additions

    def __call__(self, layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        x = inputs[0].reshape(-1, inputs[0].shape[-1])
        if len(x) != self._num_rows:
            raise RuntimeError(f"a layer that an adapter changes sees {len(x)} rows of {self._num_rows}")
        rows = out.view(-1, out.shape[-1])
        for addition in self._additions:
            addition.add(x, rows)


def _number_format(layer: nn.Module, dtype: torch.dtype) -> torch.dtype:
    """The format that a layer computes in, which some models have one of their own for; `dtype` if it doesn't say."""
    weight = getattr(layer, "weight", None)
    return weight.dtype if isinstance(weight, Tensor) else dtype


def _runs(batch: Batch) -> Iterator[tuple[slice, int]]:
    """Yield rows that stand side by side with the place of their adapter; not those of the base model."""
    if batch.adapters is None:
        return
    spans = zip(batch.adapters.tolist(), pairwise(batch.qo_indptr.tolist()), strict=True)
    for place, members in groupby(spans, key=lambda span: span[0]):
        borders = [border for _, (begin, end) in members for border in (begin, end)]
        if place != BASE_MODEL and borders[0] < borders[-1]:
            yield slice(borders[0], borders[-1]), place
