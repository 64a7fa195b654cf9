"""What sequences share is found as a token-by-token walk of all slot lists finds it, fit to be computed at once."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.attention_trees import batch_of, batch_on_a_tree
from worker.attention.sharing import SharedRange, shared_ranges
from worker.batch import Batch

Found = tuple[tuple[int, ...], int, int]


class Walk:
    """One token after the other, all sequences side by side."""

    def __init__(self, batch: Batch, min_tokens: int, min_rows: int, multiple_of: int, min_saved: int) -> None:
        self.rows = np.diff(batch.qo_indptr)
        self.paths = [
            batch.kv_indices[batch.kv_indptr[i] : batch.kv_indptr[i + 1] - self.rows[i]].tolist()
            for i in range(batch.num_sequences)
        ]
        self.min_tokens, self.min_rows, self.multiple_of, self.min_saved = min_tokens, min_rows, multiple_of, min_saved

    def ranges(self) -> set[Found]:
        by_first: dict[int, list[int]] = {}
        for index, path in enumerate(self.paths):
            if path:
                by_first.setdefault(path[0], []).append(index)
        return {found for members in by_first.values() for found in self.below(members, 0, 0)}

    def below(self, members: Sequence[int], first: int, at: int) -> Iterator[Found]:
        if len(members) < 2:
            return
        while len({self.paths[i][at] if at < len(self.paths[i]) else -1 - i for i in members}) == 1:
            at += 1
        end = at // self.multiple_of * self.multiple_of
        tokens, rows = end - first, sum(self.rows[i] for i in members)
        saved = tokens * (len(members) - 1)
        if tokens >= max(self.min_tokens, 1) and rows >= self.min_rows and saved >= self.min_saved:
            yield tuple(sorted(members)), first, end
            first = end
        groups: dict[int, list[int]] = {}
        for i in members:
            if at < len(self.paths[i]):
                groups.setdefault(self.paths[i][at], []).append(i)
        for group in groups.values():
            yield from self.below(group, first, at)


def plain(ranges: Sequence[SharedRange]) -> list[Found]:
    return [(tuple(each.sequences.tolist()), each.first, each.end) for each in ranges]


@given(
    seed=st.integers(0, 2**32 - 1),
    num_sequences=st.integers(1, 12),
    max_tokens=st.sampled_from([3, 40, 300]),
    page_size=st.sampled_from([1, 16]),
    min_tokens=st.sampled_from([0, 1, 2, 16, 64]),
    min_rows=st.sampled_from([0, 2, 5, 40]),
    multiple_of=st.sampled_from([1, 2, 16, 128]),
    min_saved=st.sampled_from([0, 30, 200]),
)
def test_sharing_is_what_a_walk_of_all_slots_finds(
    seed: int,
    num_sequences: int,
    max_tokens: int,
    page_size: int,
    min_tokens: int,
    min_rows: int,
    multiple_of: int,
    min_saved: int,
) -> None:
    rng = np.random.default_rng(seed)
    batch = batch_on_a_tree(
        rng, num_sequences=num_sequences, max_tokens=max_tokens, page_size=page_size, scattered=True, max_rows=50
    ).batch
    ranges = plain(
        shared_ranges(batch, min_tokens=min_tokens, min_rows=min_rows, multiple_of=multiple_of, min_saved=min_saved)
    )

    assert len(ranges) == len(set(ranges))
    assert set(ranges) == Walk(batch, min_tokens, min_rows, multiple_of, min_saved).ranges()
    covered = [0] * num_sequences
    for members, first, end in ranges:
        for member in members:
            assert covered[member] == first, "an inner range before the one around it, or a gap"
            covered[member] = end


def lists(*paths: Sequence[int]) -> list[np.ndarray]:
    return [np.array(path, np.int32) for path in paths]


def test_nested_prefixes_are_nested_ranges() -> None:
    batch = batch_of(lists([1, 2, 3, 4, 9], [7, 8], [1, 2, 3, 4, 10], [1, 2, 5, 11]), [1, 1, 1, 1])
    assert plain(shared_ranges(batch, min_tokens=1, min_rows=1)) == [((0, 2, 3), 0, 2), ((0, 2), 2, 4)]


def test_a_range_that_is_too_short_is_part_of_those_below_it() -> None:
    batch = batch_of(lists([1, 2, 3, 4, 5, 9], [1, 2, 3, 4, 5, 10], [1, 2, 11]), [1, 1, 1])
    assert plain(shared_ranges(batch, min_tokens=3, min_rows=1)) == [((0, 1), 0, 5)]


def test_rows_are_counted_over_all_sequences_of_a_range() -> None:
    batch = batch_of(lists([1, 2, 3, 9, 10], [1, 2, 3, 11]), [2, 1])
    assert plain(shared_ranges(batch, min_tokens=1, min_rows=3)) == [((0, 1), 0, 3)]
    assert not shared_ranges(batch, min_tokens=1, min_rows=4)


def test_who_computes_a_prefix_shares_what_lies_before_its_chunk() -> None:
    batch = batch_of(lists([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 8]), [4, 1, 1])
    assert plain(shared_ranges(batch, min_tokens=1, min_rows=1)) == [((0, 1, 2), 0, 2), ((1, 2), 2, 6)]


def test_equal_slots_behind_different_ones_are_not_shared() -> None:
    """A sequence keeps its own slots where another one was quicker to commit the same tokens."""
    batch = batch_of(lists([1, 2, 3, 4, 9], [1, 6, 3, 4, 10]), [1, 1])
    assert plain(shared_ranges(batch, min_tokens=1, min_rows=1)) == [((0, 1), 0, 1)]
    assert not shared_ranges(batch, min_tokens=3, min_rows=1)


@pytest.mark.parametrize(("multiple_of", "end"), [(1, 3), (2, 2), (3, 3), (4, None)])
def test_ranges_end_at_multiples(multiple_of: int, end: int | None) -> None:
    batch = batch_of(lists([1, 2, 3, 9], [1, 2, 3, 10]), [1, 1])
    found = plain(shared_ranges(batch, min_tokens=1, min_rows=1, multiple_of=multiple_of))
    assert found == ([] if end is None else [((0, 1), 0, end)])
