"""Names along the tree are those that `page_hashes` gives for the same key, however the tree came to be."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache.cache import PrefixCache
from hicache.keys import PAGE_HASH_BYTES, TOKEN_BYTES, PrefixKey, Segment, page_hashes
from hicache.radix.audit_queues import reach
from hicache.radix.naming import PageNames
from hicache.radix.node import Node
from tests.unit.hicache.support import drop, key, namespace, serve, start

SEED = b"a seed"
NUM_SLOTS = 96


def path_key(node: Node) -> PrefixKey:
    """The key of everything from the top down to the end of a node, read off the tree."""
    segments: list[Segment] = []
    above: Node | None = node
    tokens = b""
    while above is not None:
        tokens = bytes(above.key) + tokens
        if above.is_root:
            assert above.space is not None
            segments.insert(0, Segment(above.space.namespace, [*memoryview(tokens).cast("i")]))
            tokens = b""
        above = above.parent
    return PrefixKey(tuple(segments))


def assert_named_as_in_the_key(names: PageNames, node: Node, begin: int, end: int) -> None:
    """`begin` and `end` are tokens within the node."""
    hashes = page_hashes(path_key(node), names.page_size, SEED)
    first = node.depth // TOKEN_BYTES - node.num_tokens
    ended = (first + begin) // names.page_size, (first + end) // names.page_size
    found = names.between(node, (first + begin) * TOKEN_BYTES, (first + end) * TOKEN_BYTES)
    assert found == b"".join(hashes[slice(*ended)])


def nodes_of(cache: PrefixCache) -> list[Node]:
    return [node for node in reach(cache._tree.roots.tops.values()) if node.key]


class Life:
    """A cache whose prompts part, meet, go on, are trimmed and dropped, as the random numbers have it."""

    def __init__(self, seed: int, page_size: int, factor: int) -> None:
        self.choose = random.Random(seed)
        self.page_size = page_size
        self.names = PageNames(page_size * factor, SEED)
        self.cache = PrefixCache(NUM_SLOTS, page_size=page_size, names=self.names)
        self.asked: list[PrefixKey] = []
        self.now = 0.0

    def step(self) -> None:
        self.now += 1
        dice = self.choose.random()
        if dice < 0.7:
            serve(self.cache, self.key(), self.now)
        elif dice < 0.8:
            self.cache.acquire(self.key(), now=self.now, max_tokens=self.choose.randint(0, 20)).release()
        elif dice < 0.95:
            with self.cache.acquire(key([]), now=self.now) as pressure:
                assert pressure.reserve(self.choose.randint(0, NUM_SLOTS), now=self.now)
        else:
            drop(self.cache, self.choose.choice(["a", "public"]))

    def key(self) -> PrefixKey:
        """One that goes on from a part of an earlier one, three times out of four."""
        fresh = [self.choose.randint(0, 1) for _ in range(self.choose.randint(1, 3 * self.page_size))]
        if self.asked and self.choose.random() < 0.75:
            earlier = self.choose.choice(self.asked)
            new = earlier.prefix(self.choose.randint(0, len(earlier))).extend(fresh)
        else:
            public = [self.choose.randint(0, 1) for _ in range(self.choose.randint(0, 2 * self.page_size))]
            alone, both = Segment(namespace("public"), fresh), Segment(namespace("public"), public)
            new = self.choose.choice([PrefixKey((alone,)), PrefixKey((both, Segment(namespace("a"), fresh)))])
        self.asked.append(new.prefix(min(len(new), NUM_SLOTS // 3)))
        return self.asked[-1]

    def ask(self) -> None:
        """Ask for some names of one node: the others stay unnamed, or keep the names they had."""
        nodes = nodes_of(self.cache)
        if nodes:
            node = self.choose.choice(nodes)
            begin = self.choose.randint(0, node.num_tokens)
            assert_named_as_in_the_key(self.names, node, begin, self.choose.randint(begin, node.num_tokens))


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32 - 1), page_size=st.sampled_from([1, 2, 4]), factor=st.integers(1, 4))
def test_names_are_those_of_the_key_in_any_tree(seed: int, page_size: int, factor: int) -> None:
    life = Life(seed, page_size, factor)
    for _ in range(60):
        life.step()
        life.ask()
    for node in nodes_of(life.cache):
        assert_named_as_in_the_key(life.names, node, 0, node.num_tokens)


# ------------------------------------------------------------------------------------------------- one change at a time


class Named:
    """A cache with one prompt, and its only node."""

    def __init__(self, tokens: list[int], page_size: int = 4) -> None:
        self.names = PageNames(page_size, SEED)
        self.cache = PrefixCache(64, names=self.names)
        serve(self.cache, key(tokens), 1.0)

    def names_of(self, tokens: list[int]) -> list[bytes]:
        """Ask for the names of the node that ends a prompt."""
        with self.cache.acquire(key(tokens), now=2.0) as lease:
            assert lease.hit.total == len(tokens)
            node = lease._node
            assert node is not None
            assert_named_as_in_the_key(self.names, node, 0, node.num_tokens)
            names = self.names.between(node, node.depth - len(node.key), node.depth)
        return [names[start : start + PAGE_HASH_BYTES] for start in range(0, len(names), PAGE_HASH_BYTES)]


def test_a_node_that_grows_keeps_its_names_and_gets_more() -> None:
    tokens = list(range(10))
    named = Named(tokens)
    before = named.names_of(tokens)
    serve(named.cache, key([*tokens, 1, 2, 3, 4, 5, 6]), 3.0)
    assert named.cache.stats().nodes == 1
    after = named.names_of([*tokens, 1, 2, 3, 4, 5, 6])
    assert (len(before), len(after), after[:2]) == (2, 4, before)


def test_what_grows_where_a_tail_was_cut_off_has_names_of_its_own() -> None:
    named = Named(list(range(16)))
    before = named.names_of(list(range(16)))
    with named.cache.acquire(key([]), now=3.0) as pressure:
        assert pressure.reserve(64 - 8, now=3.0)
    serve(named.cache, key([*range(8), *[7] * 8]), 4.0)
    assert named.cache.stats().nodes == 1
    after = named.names_of([*range(8), *[7] * 8])
    assert (len(after), after[:2]) == (4, before[:2])
    assert not {*after[2:]} & {*before}


@pytest.mark.parametrize("asked", ["nobody", "upper", "lower", "both"])
@pytest.mark.parametrize("cut", range(1, 16))
def test_a_split_and_a_merge_change_no_name(cut: int, asked: str) -> None:
    tokens = list(range(16))
    named = Named(tokens)
    expected = page_hashes(key(tokens), 4, SEED)
    if asked in ("lower", "both"):
        assert named.names_of(tokens) == expected
    with named.cache.acquire(key(tokens[:cut]), now=3.0):
        assert named.cache.stats().nodes == 2
        if asked in ("upper", "both"):
            assert named.names_of(tokens[:cut]) == expected[: cut // 4]
        if asked == "both":
            assert named.names_of(tokens) == expected[cut // 4 :]
    assert named.cache.stats().nodes == 1
    assert named.names_of(tokens) == expected


@pytest.mark.parametrize("barrier", range(9))
def test_a_page_over_a_barrier_has_the_name_of_the_namespace_behind_it(barrier: int) -> None:
    names = PageNames(4, SEED)
    cache = PrefixCache(64, names=names)
    whole = PrefixKey((Segment(namespace("public"), range(barrier)), Segment(namespace("a"), range(12))))
    with start(cache, whole, 1.0) as lease:
        node = lease._node
        assert node is not None
        found = names.between(node, barrier * TOKEN_BYTES, node.depth)
        assert found == b"".join(page_hashes(whole, 4, SEED)[barrier // 4 :])


def test_names_are_computed_once() -> None:
    named = Named(list(range(16)))
    named.names_of(list(range(16)))
    (node,) = nodes_of(named.cache)
    before = node.hash_value
    named.names_of(list(range(16)))
    assert node.hash_value is before
