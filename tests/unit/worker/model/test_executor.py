"""What is asked of a forward pass: the logits of each row once, however many sample from it."""

import numpy as np
import torch
from torch import Tensor

from hicache.tiers.device import DevicePool, LayerShape
from tests.unit.worker.model.sampling_reference import row
from worker.batch import Batch, SampleRow, SamplingParams
from worker.lora.weights import AdapterBank
from worker.model.executor import ModelExecutor

VOCAB_SIZE = 64


class RecordedForward:
    """Logits that a row's number alone decides."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def logits(self, batch: Batch) -> Tensor:
        self.rows.append([sample.row for sample in batch.samples])
        made = [torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(each)) for each in self.rows[-1]]
        return torch.stack(made)

    def over(self, pool: DevicePool) -> "RecordedForward":
        return self

    def bank(self) -> AdapterBank | None:
        return None


def batch(samples: list[SampleRow]) -> Batch:
    ids = np.zeros(8, np.int32)
    return Batch(ids, ids, ids, np.array([0, 8], np.int32), np.array([0, 8], np.int32), ids, tuple(samples))


def sample(number: int, seed: int) -> SampleRow:
    return row(SamplingParams(max_new_tokens=1, seed=seed), row=number)


def run(samples: list[SampleRow]) -> tuple[list[int], list[int]]:
    forward = RecordedForward()
    executor = ModelExecutor(forward, DevicePool([LayerShape(1, 1, 1)], 8, torch.float32, "cpu"))
    return [token.token_id for token in executor.run(batch(samples))], forward.rows[0]


def test_rows_that_several_sample_from_are_asked_for_once_and_all_get_what_they_would_alone() -> None:
    samples = [sample(2, 0), *(sample(5, seed) for seed in range(20)), sample(7, 1), sample(7, 2)]
    tokens, rows = run(samples)
    assert rows == [2, 5, 7]
    assert tokens == [run([each])[0][0] for each in samples]
    assert len(set(tokens[1:21])) > 5


def test_distinct_rows_are_asked_for_as_they_are() -> None:
    assert run([sample(number, 0) for number in (1, 4, 6)])[1] == [1, 4, 6]
