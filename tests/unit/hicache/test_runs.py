import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.tiers.runs import Run, check_slots, runs_between


def slots(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("sources", "targets", "expected"),
    [
        ((), (), []),
        ((7,), (3,), [Run(7, 3, 1)]),
        ((7, 8, 9), (3, 4, 5), [Run(7, 3, 3)]),
        ((7, 8, 9), (3, 4, 6), [Run(7, 3, 2), Run(9, 6, 1)]),
        ((7, 9, 10), (3, 4, 5), [Run(7, 3, 1), Run(9, 4, 2)]),
        ((3, 2, 1), (3, 2, 1), [Run(3, 3, 1), Run(2, 2, 1), Run(1, 1, 1)]),
        ((0, 1, 0, 1), (0, 1, 2, 3), [Run(0, 0, 2), Run(0, 2, 2)]),
    ],
)
def test_a_run_goes_on_while_both_sides_do(
    sources: tuple[int, ...], targets: tuple[int, ...], expected: list[Run]
) -> None:
    assert runs_between(slots(*sources), slots(*targets)) == expected


@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_runs_are_the_pairs_again_and_none_could_be_longer(pairs: list[tuple[int, int]]) -> None:
    runs = runs_between(slots(*(a for a, _ in pairs)), slots(*(b for _, b in pairs)))
    assert [(run.source + i, run.target + i) for run in runs for i in range(run.num_slots)] == pairs
    for run, following in itertools.pairwise(runs):
        assert (following.source, following.target) != (run.source + run.num_slots, run.target + run.num_slots)


def test_slots_that_there_are_not_are_named() -> None:
    check_slots(slots(), 4, "host")
    check_slots(slots(0, 3), 4, "host")
    with pytest.raises(IndexError, match=r"host slots must be in 0\.\.3, got 0\.\.4"):
        check_slots(slots(0, 4), 4, "host")
    with pytest.raises(IndexError, match=r"device slots must be in 0\.\.3, got -1\.\.2"):
        check_slots(slots(2, -1), 4, "device")
