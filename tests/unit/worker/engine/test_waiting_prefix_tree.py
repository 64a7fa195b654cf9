"""Waiting sequences by what they share, compared with going through all of them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.worker.engine.waiting_sequences import waiting
from worker.engine.inflight import shared_tokens
from worker.engine.sequence import Sequence
from worker.engine.waiting.prefix_tree import PrefixTree, packed_key

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=8)


def orders(tree: PrefixTree, trail: bytes = b"") -> list[int]:
    return [sequence.order for sequence in tree.depth_first(trail)]


def tree_of(*tokens: list[int]) -> tuple[PrefixTree, list[Sequence]]:
    tree, sequences = PrefixTree(), [waiting(order, each) for order, each in enumerate(tokens)]
    for sequence in sequences:
        tree.add(sequence)
    tree.check()
    return tree, sequences


@settings(max_examples=200)
@given(keys=st.lists(prompts, max_size=20), data=st.data())
def test_whatever_comes_and_goes_everybody_is_found_once_and_the_tree_is_minimal(
    keys: list[list[int]], data: st.DataObject
) -> None:
    tree, sequences = tree_of(*keys)
    here = {sequence.order for sequence in sequences}
    for sequence in data.draw(st.permutations(sequences)):
        assert sorted(orders(tree)) == sorted(here)
        tree.remove(sequence)
        here.remove(sequence.order)
        tree.check()
    assert orders(tree) == []


@settings(max_examples=200)
@given(keys=st.lists(prompts, min_size=1, max_size=20), published=st.lists(st.tuples(prompts, st.integers(1, 8))))
def test_who_gains_is_who_shares_more_of_what_was_published_than_was_cached_of_it(
    keys: list[list[int]], published: list[tuple[list[int], int]]
) -> None:
    tree, sequences = tree_of(*keys)
    known = dict.fromkeys(range(len(keys)), 0)
    for tokens, num_tokens in published:
        source = waiting(1000, tokens)
        truth = {sequence.order: min(shared_tokens(source.key, sequence.key), num_tokens) for sequence in sequences}
        expected = {order for order, shared in truth.items() if shared > known[order]}
        found = tree.gained(source, num_tokens, lambda sequence, shared: shared > known[sequence.order])
        assert expected <= {sequence.order for sequence in found}
        for order in expected:
            known[order] = truth[order]


def test_who_gains_nothing_is_not_asked_about_one_by_one() -> None:
    system = [7] * 50
    tree, _ = tree_of(*[[*system, order] for order in range(1000)])
    num_asked = 0

    def gains(_: Sequence, shared: int) -> bool:
        nonlocal num_asked
        num_asked += 1
        return shared > 50

    assert tree.gained(waiting(2000, [*system, 5000]), 51, gains) == []
    assert num_asked == 1


def test_the_heaviest_subtree_comes_first_and_is_finished_before_the_next() -> None:
    tree, _ = tree_of([1, 1], [2, 1], [1, 2], [2, 2], [2, 3], [3, 1])
    assert orders(tree) == [1, 3, 4, 0, 2, 5]


def test_a_subtree_that_was_begun_comes_before_heavier_ones() -> None:
    tree, sequences = tree_of([1, 1], [2, 1], [1, 2], [2, 2], [2, 3], [3, 1])
    assert orders(tree, packed_key(sequences[0])) == [0, 2, 1, 3, 4, 5]


def test_equals_come_in_the_order_of_arrival() -> None:
    tree, _ = tree_of([1], [1], [1])
    assert orders(tree) == [0, 1, 2]


def test_those_handed_out_may_be_removed_meanwhile() -> None:
    tree, sequences = tree_of([1, 1], [1, 2], [1], [2, 1], [2, 2, 2])
    seen = []
    for sequence in tree.depth_first(b""):
        seen.append(sequence.order)
        tree.remove(sequences[sequence.order])
        tree.check()
    assert sorted(seen) == [0, 1, 2, 3, 4]
