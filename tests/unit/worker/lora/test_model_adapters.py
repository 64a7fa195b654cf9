from pathlib import Path

import pytest
import torch

from worker.lora.errors import AdapterError
from worker.lora.model_adapters import MeasuredBank, RefusedAdapters
from worker.lora.weights import AdapterWeights, LowRank

WEIGHTS = AdapterWeights("r1", {"layers.0.q_proj": LowRank(torch.zeros(1, 2), torch.zeros(2, 1), 1.0)})


class Bank:
    def __init__(self) -> None:
        self.places: dict[int, str] = {}

    def put(self, place: int, adapter: AdapterWeights) -> None:
        if place > 3:
            raise MemoryError
        self.places[place] = adapter.revision

    def clear(self, place: int) -> None:
        self.places.pop(place, None)


class Observer:
    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.num_failed = 0

    def adapter_loaded(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def adapter_load_failed(self) -> None:
        self.num_failed += 1


def test_a_measured_bank_does_what_the_bank_does_and_says_how_long_it_took() -> None:
    bank, observer = Bank(), Observer()
    measured = MeasuredBank(bank, observer)
    measured.put(2, WEIGHTS)
    measured.put(3, WEIGHTS)
    measured.clear(2)
    assert bank.places == {3: "r1"}
    assert len(observer.seconds) == 2
    assert min(observer.seconds) >= 0
    assert observer.num_failed == 0


def test_a_load_that_fails_counts_as_one_and_fails() -> None:
    observer = Observer()
    with pytest.raises(MemoryError):
        MeasuredBank(Bank(), observer).put(4, WEIGHTS)
    assert (observer.seconds, observer.num_failed) == ([], 1)


def test_where_there_can_be_no_adapters_whoever_brings_one_is_told_why(tmp_path: Path) -> None:
    refused = RefusedAdapters("the model has no linear layers")
    assert refused.num_places == 0
    with pytest.raises(AdapterError, match="the model has no linear layers"):
        refused.read(tmp_path)
