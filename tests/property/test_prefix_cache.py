"""Any mix of requests, in any order, against a model that is a plain dictionary of prefixes.

The model knows which whole-page prefixes are cached, and after an eviction finds out by `peek` which ones are gone.
Beside it every slot holds what a model would have computed into it, so that a slot that is shared wrongly, reused too
early or mixed up between namespaces is seen by whoever reads it. And whoever watches the tier has heard of every page
that is cached, by the name that its key gives it, and of no other.
"""

from collections import Counter
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hicache.cache import Lease, PrefixCache
from hicache.keys import PrefixKey, Segment, page_hashes
from hicache.radix import policy
from hicache.radix.naming import PageNames
from hicache.radix.shares import Share
from tests.unit.hicache.support import Diary, namespace, settle

NUM_PAGES = 24
NAMES = ("a", "b", "public")
SHARES: list[dict[str, Share]] = [
    {},
    {"a": Share(floor=0.25)},
    {"a": Share(floor=0.5, weight=0.5), "b": Share(floor=0.25, weight=4.0)},
]
SEED = b"seed"

# A prefix, told apart by every namespace on its way and the tokens it has in each.
Path = tuple[tuple[str, bytes], ...]


@dataclass
class Running:
    """A sequence that holds a lease: what it asked for, how far it is computed and published."""

    lease: Lease
    names: tuple[str, ...]
    key: PrefixKey
    computed: int
    committed: int
    dropped: bool = False


@st.composite
def token_lists(draw: st.DrawFn, page_size: int, max_pages: int) -> list[int]:
    """Runs of pages that often agree: wholly, in their first token, or in all but their last one."""
    kinds = draw(st.lists(st.sampled_from("xyz"), min_size=1, max_size=max_pages))
    first, rest = {"x": 0, "y": 0, "z": 1}, {"x": 0, "y": 1, "z": 1}
    tokens = [token for kind in kinds for token in [first[kind]] * (page_size - 1) + [rest[kind]]]
    return tokens[: len(tokens) - draw(st.integers(0, page_size - 1))]


class PrefixCacheMachine(RuleBasedStateMachine):
    page_size = 1

    def __init__(self) -> None:
        super().__init__()
        self.running: list[Running] = []
        self.cached: dict[Path, PrefixKey] = {}
        self.asked: list[tuple[tuple[str, ...], PrefixKey]] = []
        self.now = 0.0
        self.computed = np.zeros(NUM_PAGES * self.page_size, dtype=np.int64)

    @initialize(policy_name=st.sampled_from(policy.NAMES), shares=st.sampled_from(SHARES), pages=st.integers(1, 3))
    def start(self, policy_name: str, shares: dict[str, Share], pages: int) -> None:
        self.diary = Diary(PageNames(pages * self.page_size, SEED))
        self.cache = PrefixCache(
            NUM_PAGES * self.page_size,
            page_size=self.page_size,
            policy=policy.by_name(policy_name),
            shares=shares,
            names=self.diary.names,
            watcher=self.diary,
        )

    # ------------------------------------------------------------------------------------------------------ the rules

    @precondition(lambda self: len(self.running) < 6)
    @rule(data=st.data(), priority=st.integers(0, 2))
    def acquire(self, data: st.DataObject, priority: int) -> None:
        names, key = self.draw_key(data)
        self.open(names, key, data.draw(st.none() | st.integers(0, len(key))), priority)

    @rule(data=st.data(), priority=st.integers(0, 2), stays=st.booleans())
    def serve(self, data: st.DataObject, priority: int, stays: bool) -> None:
        """A whole request at once, as the engine runs it; most of what is cached comes from here."""
        names, key = self.draw_key(data)
        sequence = self.open(names, key, max(0, len(key) - 1), priority)
        if self.advance(sequence, len(key) - sequence.lease.num_tokens):
            self.publish(sequence, len(key))
        if not stays or len(self.running) > 6:
            self.running.remove(sequence)
            sequence.lease.release()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), num_pages=st.integers(0, 5), tail=st.integers(0, 15), commits=st.booleans())
    def compute(self, data: st.DataObject, num_pages: int, tail: int, commits: bool) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        if self.advance(sequence, num_pages * self.page_size + tail % self.page_size) and commits:
            self.publish(sequence, sequence.computed)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        self.publish(sequence, data.draw(st.integers(0, sequence.computed)))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        sequence = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        sequence.lease.release()
        sequence.lease.release()

    @rule(name=st.sampled_from(NAMES), seldom=st.sampled_from([False] * 9 + [True]))
    def drop(self, name: str, seldom: bool) -> None:
        if not seldom:
            return
        self.cache.drop(namespace(name))
        self.cached = {path: key for path, key in self.cached.items() if name not in dict(path)}
        for sequence in self.running:
            sequence.dropped |= name in sequence.names

    @rule(
        tenant=st.sampled_from(["a", "b", "nobody"]),
        num_pages=st.integers(0, NUM_PAGES + 1),
        weight=st.sampled_from([0.5, 1.0, 3.0]),
        largest=st.integers(0, NUM_PAGES),
    )
    def promise(self, tenant: str, num_pages: int, weight: float, largest: int) -> None:
        """Shares change at any time; what others are promised, and room for somebody, stays."""
        before = {name: self.cache.floor_slots(name) for name in ("a", "b", "nobody")}
        asked = num_pages * self.page_size
        promised = self.cache.set_share(tenant, asked, weight, largest_lease=largest * self.page_size)
        assert promised == self.cache.floor_slots(tenant)
        assert {name: self.cache.floor_slots(name) for name in before if name != tenant} == {
            name: floor for name, floor in before.items() if name != tenant
        }
        if asked:
            assert promised <= asked
            if promised > before[tenant]:
                assert self.cache.max_lease_slots >= max(largest * self.page_size, NUM_PAGES * self.page_size // 10)

    @rule(num_nodes=st.integers(1, 4))
    def free_what_was_dropped(self, num_nodes: int) -> None:
        """What a tick does, with less at a time."""
        self.cache._slots.free_packed(self.cache._removal.reap(num_nodes))

    # ------------------------------------------------------------------------------------------ what holds after each

    @invariant()
    def the_cache_agrees_with_itself(self) -> None:
        if hasattr(self, "cache"):
            self.cache.check()

    @invariant()
    def every_sequence_reads_what_was_computed_for_it(self) -> None:
        for sequence in self.running:
            read = self.computed[sequence.lease.slots]
            assert np.array_equal(read, content(sequence)[: sequence.computed])

    @invariant()
    def the_cache_holds_what_the_model_holds(self) -> None:
        if hasattr(self, "cache"):
            cached = self.cache.num_cached_slots
            if self.cache.pending or any(sequence.dropped for sequence in self.running):
                assert cached >= len(self.cached) * self.page_size
            else:
                assert cached == len(self.cached) * self.page_size

    @invariant()
    def whoever_watches_knows_what_is_cached(self) -> None:
        if hasattr(self, "cache"):
            names = self.diary.names
            named = Counter(
                page_hashes(key, names.page_size, SEED)[-1]
                for key in self.cached.values()
                if len(key) % names.page_size == 0
            )
            assert named <= self.diary.held if self.cache.pending else named == self.diary.held

    def teardown(self) -> None:
        for sequence in self.running:
            sequence.lease.release()
        if hasattr(self, "cache"):
            self.cache.check()
            for name in NAMES:
                self.cache.drop(namespace(name))
            self.cache.check()
            settle(self.cache)
            self.cache.check()
            assert self.cache.num_free_slots == self.cache.num_slots
            assert not self.diary.held

    # ----------------------------------------------------------------------------------------------- parts of the rules

    def draw_key(self, data: st.DataObject) -> tuple[tuple[str, ...], PrefixKey]:
        """A key that often goes on from, or parts from, one that was asked for before."""
        tokens = data.draw(token_lists(self.page_size, 6))
        if self.asked and data.draw(st.sampled_from([True, True, True, False])):
            names, earlier = data.draw(st.sampled_from(self.asked))
            key = earlier.prefix(data.draw(st.integers(0, len(earlier)))).extend(tokens[: 4 * self.page_size])
            key = key.prefix(min(len(key), 12 * self.page_size))
        else:
            name = data.draw(st.sampled_from(NAMES))
            names, key = (name,), PrefixKey.of(namespace(name), tokens)
            if name != "public" and data.draw(st.booleans()):
                barrier = data.draw(st.integers(0, len(tokens)))
                public, own = Segment(namespace("public"), tokens[:barrier]), Segment(namespace(name), tokens[barrier:])
                names, key = ("public", name), PrefixKey((public, own))
        self.asked.append((names, key))
        return names, key

    def open(self, names: tuple[str, ...], key: PrefixKey, max_tokens: int | None, priority: int) -> Running:
        expected = self.longest_cached(names, key, max_tokens)
        assert self.cache.peek(key, max_tokens=max_tokens).total == expected
        self.now += 1
        lease = self.cache.acquire(key, now=self.now, max_tokens=max_tokens, priority=priority, tenant=names[-1])
        assert lease.hit.device == lease.num_tokens == expected
        sequence = Running(lease, names, key, expected, expected)
        self.running.append(sequence)
        return sequence

    def advance(self, sequence: Running, num_tokens: int) -> bool:
        """Reserve slots and compute into them, or see to it that there really was no room."""
        before, held, was_pending = self.cache.stats(), sequence.lease.slots.tolist(), self.cache.pending
        tenant, spare = sequence.names[-1], -len(held) % self.page_size
        available = spare + self.cache.num_available_slots(tenant)
        self.now += 1
        if not sequence.lease.reserve(num_tokens, now=self.now):
            assert sequence.lease.slots.tolist() == held
            assert self.cache.stats() == before or was_pending
            assert num_tokens > spare + self.cache.num_available_slots(tenant)
            assert available <= spare + self.cache.num_available_slots(tenant) or was_pending
            return False
        assert num_tokens <= available or was_pending
        self.learn_what_was_evicted(before.evicted_tokens)
        length = sequence.lease.num_tokens
        assert length == len(held) + num_tokens
        assert sequence.lease.slots.tolist()[: len(held)] == held
        if length > len(sequence.key):
            sequence.key = sequence.key.extend([0] * (length - len(sequence.key)))
        slots = sequence.lease.slots[sequence.computed :]
        self.computed[slots] = content(sequence)[sequence.computed : length]
        sequence.computed = length
        return True

    def publish(self, sequence: Running, length: int) -> None:
        held = sequence.lease.slots.tolist()
        self.now += 1
        published = sequence.key.prefix(length)
        sequence.lease.commit(published, now=self.now)
        assert sequence.lease.slots.tolist() == held
        if not sequence.dropped:
            sequence.committed = max(sequence.committed, length // self.page_size * self.page_size)
            self.cached.update(self.prefixes(sequence.names, published))

    # ---------------------------------------------------------------------------------------------------------- model

    def prefixes(self, names: tuple[str, ...], key: PrefixKey) -> dict[Path, PrefixKey]:
        """Every prefix of whole pages, by its path."""
        lengths = range(self.page_size, len(key) + 1, self.page_size)
        return {path_of(names, key.prefix(length), self.page_size): key.prefix(length) for length in lengths}

    def longest_cached(self, names: tuple[str, ...], key: PrefixKey, max_tokens: int | None) -> int:
        limit = len(key) if max_tokens is None else max_tokens
        hits = [len(prefix) for path, prefix in self.prefixes(names, key).items() if path in self.cached]
        return max((length for length in hits if length <= limit), default=0)

    def learn_what_was_evicted(self, evicted_before: int) -> None:
        evicted = self.cache.stats().evicted_tokens - evicted_before
        if not evicted:
            return
        kept = {path: key for path, key in self.cached.items() if self.cache.peek(key).total == len(key)}
        assert (len(self.cached) - len(kept)) * self.page_size == evicted
        for sequence in self.running:
            if not sequence.dropped:
                assert self.prefixes(sequence.names, sequence.key.prefix(sequence.committed)).keys() <= kept.keys()
        self.cached = kept


def path_of(names: tuple[str, ...], key: PrefixKey, page_size: int) -> Path:
    """The model's own idea of which page belongs to whom: a page that straddles the barrier is the tenant's."""
    tokens = key.token_ids.tobytes()
    if len(names) == 1:
        return ((names[0], tokens),)
    barrier = len(key.segments[0]) // page_size * page_size * 4
    if not barrier:
        return ((names[1], tokens),)
    return ((names[0], tokens[:barrier]), (names[1], tokens[barrier:])) if tokens[barrier:] else ((names[0], tokens),)


def content(sequence: Running) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """What a model computes for each token: a value that depends on all tokens up to it."""
    values: list[int] = []
    state = 1
    for token in sequence.key.token_ids.tolist():
        state = (state * 1_000_003 + token + 1) % (2**61 - 1)
        values.append(state)
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_any_mix_of_requests_agrees_with_a_dictionary_of_prefixes(page_size: int) -> None:
    machine = type("Machine", (PrefixCacheMachine,), {"page_size": page_size})
    test = cast("type[RuleBasedStateMachine]", machine).TestCase
    current = settings()
    test.settings = settings(
        max_examples=max(120, current.max_examples), stateful_step_count=max(50, current.stateful_step_count)
    )
    test("runTest").runTest()
