"""One model's adapters: read from folders, kept on the host, brought to the device. Knows no requests, no tenants."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from worker.engine.adapters import AdapterSource, NoAdapters
from worker.lora.errors import AdapterError
from worker.lora.folder import read_adapter
from worker.lora.loader import AdapterLoader
from worker.lora.weights import AdapterBank, AdapterWeights, Targets


class ModelAdapters(AdapterSource, Protocol):
    """What a worker needs of a model that may take adapters."""

    def read(self, folder: Path) -> AdapterWeights:
        """Read an adapter and change nothing; may take long. Raises AdapterError for one that can't be used here."""
        ...

    def add(self, weights: AdapterWeights) -> None:
        """Keep an adapter on the host, from where it can be loaded, until it is forgotten."""
        ...

    def close(self) -> None: ...


class LoadObserver(Protocol):
    """Hears how adapters came to the device, from the thread that brings them."""

    def adapter_loaded(self, seconds: float) -> None: ...

    def adapter_load_failed(self) -> None: ...


class FolderAdapters(AdapterLoader):
    """Implements ModelAdapters for PEFT folders."""

    def __init__(
        self, bank: AdapterBank, targets: Targets, dtype: torch.dtype, *,
        max_rank: int, num_places: int, on_done: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(bank, num_places, on_done)
        self._targets = targets
        self._dtype = dtype
        self._max_rank = max_rank

    def read(self, folder: Path) -> AdapterWeights:
        return read_adapter(folder, self._targets, self._dtype, self._max_rank)


class RefusedAdapters(NoAdapters):
    """Implements ModelAdapters where there can't be any; says why to whoever brings one."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def read(self, folder: Path) -> AdapterWeights:
        raise AdapterError("adapters", self._reason)

    def add(self, weights: AdapterWeights) -> None:
        raise AssertionError("there are no adapters here")

    def close(self) -> None:
        return


class MeasuredBank:
    """Implements AdapterBank over another one, and tells how long adapters take to get there."""

    def __init__(self, bank: AdapterBank, observer: LoadObserver) -> None:
        self._bank = bank
        self._observer = observer

    def put(self, place: int, adapter: AdapterWeights) -> None:
        began_at = time.monotonic()
        try:
            self._bank.put(place, adapter)
        except BaseException:
            self._observer.adapter_load_failed()
            raise
        self._observer.adapter_loaded(time.monotonic() - began_at)

    def clear(self, place: int) -> None:
        self._bank.clear(place)
