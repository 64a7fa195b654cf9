"""Adapters of a simulated model: read and checked like any other's, and any linear layer may be changed by them.

What they compute is not simulated, only that it is something else: histories begin with their revision.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from worker.lora.errors import AdapterError
from worker.lora.folder import read_adapter
from worker.lora.loader import AdapterLoader
from worker.lora.tensors import WEIGHTS_FILE, parse_tensors
from worker.lora.weights import AdapterBank, AdapterWeights, LinearShape, Targets


class AdapterOrigins:
    """Implements AdapterBank: knows where histories begin that an adapter computes.

    Places are written by one thread, and read by another one while nobody writes them.
    """

    def __init__(self) -> None:
        self._origins: dict[int, int] = {}

    def put(self, place: int, adapter: AdapterWeights) -> None:
        self._origins[place] = int(adapter.revision[:16], 16)

    def clear(self, place: int) -> None:
        self._origins.pop(place, None)

    def at(self, place: int) -> int:
        """Raises KeyError where no adapter lies."""
        return self._origins[place]


class SimulatedAdapters(AdapterLoader):
    """Implements ModelAdapters for PEFT folders, whatever model they were made for."""

    def __init__(self, bank: AdapterBank, *, max_rank: int, num_places: int, on_done: Callable[[], None]) -> None:
        super().__init__(bank, num_places, on_done)
        self._max_rank = max_rank

    def read(self, folder: Path) -> AdapterWeights:
        return read_adapter(folder, _own_targets(folder), torch.float32, self._max_rank)


def _own_targets(folder: Path) -> Targets:
    """Return the layers that an adapter changes, as it has them itself. Raises AdapterError."""
    try:
        content = (folder / WEIGHTS_FILE).read_bytes()
    except OSError as error:
        raise AdapterError(WEIGHTS_FILE, f"can't be read in {folder}: {error.strerror}") from error
    features: dict[str, dict[str, int]] = {}
    for name, tensor in parse_tensors(content).items():
        path, _, part = name.removeprefix("base_model.model.").rpartition(".lora_")
        if tensor.dim() == 2:
            features.setdefault(path, {})[part[:1]] = tensor.shape[1] if part.startswith("A") else tensor.shape[0]
    return {path: LinearShape(found.get("A", 0), found.get("B", 0)) for path, found in features.items()}
