"""The benchmark of attention measures what it says. Its figures are not judged here."""

import numpy as np
import pytest
import torch

from benchmarks.attention import CPU, Case, batch_of, cases, measure
from worker.attention.registry import available_backends
from worker.attention.sharing import shared_ranges

torch.set_num_threads(1)


def test_every_backend_is_measured() -> None:
    case = Case("tiny", 1, 16, 2, 4, 1)
    found = measure(case, torch.float32, available_backends(CPU), repeat=1, scattered=True)
    assert set(found) == set(available_backends(CPU))
    assert all(milliseconds > 0 for milliseconds in found.values())


@pytest.mark.parametrize("case", [case for case in cases() if case.num_slots < 20_000], ids=lambda case: case.name)
def test_sequences_of_a_case_share_what_it_says(case: Case) -> None:
    batch = batch_of(case, np.random.default_rng(0).permutation(case.num_slots).astype(np.int32))
    shared = shared_ranges(batch, min_tokens=1, min_rows=1)

    assert batch.num_tokens == case.sequences * case.rows
    assert [(len(each.sequences), each.first, each.end) for each in shared] == [
        (case.sequences // case.prefixes, 0, case.shared) for _ in range(case.prefixes)
    ]
