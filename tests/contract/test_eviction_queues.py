"""Every policy's queue against the obvious one: a list of leaves that is searched from end to end."""

import random
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from hicache.radix import policy
from hicache.radix.node import Node
from hicache.radix.policy import LHD, SLRU, EvictionPolicy
from hicache.radix.victims import Victims

# What each policy says it does, in words of its own. SLRU and LHD depend on more than the leaf: see `model_of`.
ORDERS: dict[str, Callable[[Node], Any]] = {
    "lru": lambda leaf: leaf.last_access_time,
    "mru": lambda leaf: -leaf.last_access_time,
    "lfu": lambda leaf: (leaf.hit_count, leaf.last_access_time),
    "fifo": lambda leaf: leaf.stored_time,
    "filo": lambda leaf: -leaf.stored_time,
    "priority": lambda leaf: leaf.last_access_time + 60.0 * leaf.priority,
}


numbers = count()  # no two leaves have the same tokens


class Searched:
    """The leaves in the order of their entry; the first one of the smallest rank goes next."""

    def __init__(self, order: Callable[[Node], Any]) -> None:
        self.order = order
        self.leaves: list[Node] = []

    def add(self, leaf: Node) -> None:
        self.leaves.append(leaf)

    def discard(self, leaf: Node) -> None:
        self.leaves.remove(leaf)

    def first(self) -> Node:
        return min(self.leaves, key=self.order)


class SearchedSegments(Searched):
    """SLRU: at most four fifths are protected when a leaf becomes so; demoted leaves stay where their age puts them."""

    def __init__(self) -> None:
        super().__init__(lambda leaf: (leaf in self.protected, leaf.last_access_time))
        self.protected: list[Node] = []
        self.demoted: list[float] = [-1.0]

    def add(self, leaf: Node) -> None:
        super().add(leaf)
        if leaf.hit_count and leaf.last_access_time > max(self.demoted):
            self.protected.append(leaf)
            if len(self.protected) > -(-4 * len(self.leaves) // 5):
                self.demoted.append(min(other.last_access_time for other in self.protected))
                self.protected = [other for other in self.protected if other.last_access_time > max(self.demoted)]

    def discard(self, leaf: Node) -> None:
        super().discard(leaf)
        self.protected = [other for other in self.protected if other is not leaf]


def model_of(chosen: EvictionPolicy) -> Searched:
    if isinstance(chosen, SLRU):
        return SearchedSegments()
    # How LHD ranks is tested elsewhere; here, that its queue finds the smallest rank.
    return Searched(chosen.rank if isinstance(chosen, LHD) else ORDERS[chosen.name])


def new_leaf(now: float, priority: int = 0) -> Node:
    return Node(bytearray(next(numbers).to_bytes(4, "little")), bytearray(4), None, None, now, priority)


def touch(victims: Victims, leaf: Node, now: float) -> None:
    """What the tree does for a request that ends in a leaf."""
    leaf.hit_count += 1
    victims.discard(leaf)
    leaf.last_access_time = now
    victims.add(leaf)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", policy.NAMES)
def test_leaves_go_in_the_order_that_searching_all_of_them_finds(name: str, seed: int) -> None:
    choose = random.Random(seed)
    chosen = policy.by_name(name)
    victims, model = Victims(chosen), model_of(chosen)
    for now in range(2_000):
        action = choose.random()
        if model.leaves and action < 0.25:
            leaf = victims.first()
            assert leaf is model.first(), f"at {now}"
            victims.discard(leaf)
            model.discard(leaf)
        elif model.leaves and action < 0.6:
            leaf = choose.choice(model.leaves[-20:])
            model.discard(leaf)
            touch(victims, leaf, float(now // 3))
            model.add(leaf)
        else:
            leaf = new_leaf(float(now // 3), choose.choice([0, 0, 1, 3]))
            victims.add(leaf)
            model.add(leaf)
        assert len(victims) == len(model.leaves)
    while model.leaves:
        leaf = victims.first()
        assert leaf is model.first()
        victims.discard(leaf)
        model.discard(leaf)
    assert victims.entries() == []


@pytest.mark.parametrize("name", policy.NAMES)
def test_entries_are_the_leaves_that_are_in_with_their_ranks_of_now(name: str) -> None:
    chosen = policy.by_name(name)
    victims = Victims(chosen)
    leaves = [new_leaf(float(now)) for now in range(20)]
    for leaf in leaves:
        victims.add(leaf)
    for now, leaf in enumerate(leaves[:15]):
        touch(victims, leaf, 20.0 + now)
    victims.discard(leaves[0])
    entries = victims.entries()
    assert {leaf for _, _, leaf in entries} == set(leaves[1:])
    assert all(rank == chosen.rank(leaf) and ticket == leaf.ticket for rank, ticket, leaf in entries)
    assert min(entries, key=lambda entry: entry[:2])[2] is victims.first()


class CountedTime(float):
    """A time that notes how often it was compared."""

    comparisons = 0

    def __lt__(self, other: float) -> bool:
        CountedTime.comparisons += 1
        return float.__lt__(self, other)

    def __eq__(self, other: object) -> bool:
        CountedTime.comparisons += 1
        return float.__eq__(self, other)

    __hash__ = float.__hash__

    def __neg__(self) -> "CountedTime":
        return CountedTime(float.__neg__(self))

    def __add__(self, other: float) -> "CountedTime":
        return CountedTime(float.__add__(self, other))


def comparisons_per_operation(chosen: EvictionPolicy, num_leaves: int) -> float:
    """Fill the queue in random order of age, then evict, enter and touch."""
    choose = random.Random(0)
    victims = Victims(chosen)
    leaves = [new_leaf(CountedTime(now), choose.randint(0, 3)) for now in choose.sample(range(num_leaves), num_leaves)]
    CountedTime.comparisons = 0
    for leaf in leaves:
        victims.add(leaf)
    for now in range(num_leaves, num_leaves + 2_000):
        victims.discard(victims.first())
        victims.add(new_leaf(CountedTime(now)))
        leaf = leaves[choose.randrange(num_leaves)]
        if leaf.ticket:
            touch(victims, leaf, CountedTime(now))
    return CountedTime.comparisons / (num_leaves + 6_000)


@pytest.mark.parametrize("name", policy.NAMES)
def test_an_operation_among_100_000_leaves_compares_hardly_more_than_among_1_000(name: str) -> None:
    few = comparisons_per_operation(policy.by_name(name), 1_000)
    many = comparisons_per_operation(policy.by_name(name), 100_000)
    assert 0 < many < 40
    assert many < 3 * few


def test_the_protected_segment_of_slru_has_a_bound() -> None:
    victims = Victims(SLRU(protected_share=0.5))
    leaves = [new_leaf(0.0) for _ in range(10)]
    for leaf in leaves:
        victims.add(leaf)
    for now, leaf in enumerate(leaves, start=1):
        touch(victims, leaf, float(now))
    protected = {leaf for rank, _, leaf in victims.entries() if rank[0]}
    assert protected == set(leaves[5:])


def test_queues_that_share_an_slru_share_the_age_of_demotion_and_keep_their_order() -> None:
    shared = SLRU(protected_share=0.5)
    quiet, busy = Victims(shared), Victims(shared)
    fresh, hit = new_leaf(2.0), new_leaf(1.0)
    quiet.add(fresh)
    hit.hit_count = 1
    quiet.add(hit)
    assert quiet.first() is fresh
    for now in (3.0, 4.0):
        leaf = new_leaf(now)
        leaf.hit_count = 1
        busy.add(leaf)
    assert quiet.first() is hit
    assert min(quiet.entries(), key=lambda entry: entry[:2])[2] is hit


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=f"protected_share must be in 0..1, got {share}"):
        SLRU(protected_share=share)
