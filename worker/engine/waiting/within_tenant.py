"""In which order the sequences of one tenant start. Knows what they share and what the cache has of them.

Each tenant's queue asks about its own sequences only, so nothing here can depend on what others have in the cache.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Protocol

from worker.engine.sequence import Sequence
from worker.engine.waiting.line import CachedPrefixes, Readiness
from worker.engine.waiting.prefix_tree import PrefixTree, packed_key

AGED_EVERY = 4
"""One start of so many goes to who has waited too long, if there is anybody."""


class PrefixOrder(Protocol):
    """An order of new sequences that follows their prefixes, with no regard to how long they wait."""

    def add(self, sequence: Sequence) -> None: ...

    def remove(self, sequence: Sequence) -> None: ...

    def ordered(self, is_ready: Readiness) -> Iterator[Sequence]:
        """Yield those that are ready; those already yielded may be removed meanwhile."""
        ...

    def started(self, sequence: Sequence) -> None:
        """A sequence that was removed runs."""
        ...

    def published(self, sequence: Sequence, num_tokens: int) -> None:
        """The cache has the first `num_tokens` tokens of a sequence's key."""
        ...

    def check(self) -> None:
        """Verify the invariants; raises AssertionError."""
        ...


class LongestCachedFirst:
    """Longest cached prefix first, then arrival, so that what is cached is used while it is.

    Who gains by what is computed is found by the tokens they share, and asked anew. What was lost meanwhile is noticed
    when a sequence's turn has come. So a step costs as many questions as there are changes, however many wait.
    """

    def __init__(self, cached: CachedPrefixes) -> None:
        self._cached = cached
        self._tree = PrefixTree()
        self._sequences: dict[int, Sequence] = {}  # by order
        self._known: dict[int, int] = {}  # cached tokens, by order
        self._line: list[tuple[int, int]] = []  # (-cached tokens, order), ascending

    def add(self, sequence: Sequence) -> None:
        self._tree.add(sequence)
        self._sequences[sequence.order] = sequence
        self._enter(sequence.order, self._cached.cached_tokens(sequence))

    def remove(self, sequence: Sequence) -> None:
        self._tree.remove(sequence)
        del self._sequences[sequence.order]
        self._withdraw(sequence.order)
        del self._known[sequence.order]

    def ordered(self, is_ready: Readiness) -> Iterator[Sequence]:
        pending = list(self._line)
        index = 0
        while index < len(pending):
            known, order = -pending[index][0], pending[index][1]
            index += 1
            sequence = self._sequences.get(order)
            if sequence is None or self._known[order] != known or not is_ready(sequence):
                continue
            cached = self._cached.cached_tokens(sequence)
            if cached != known:
                self._withdraw(order)
                self._enter(order, cached)
            if cached < known:
                insort(pending, (-cached, order), lo=index)
                continue
            yield sequence

    def started(self, sequence: Sequence) -> None:
        return

    def published(self, sequence: Sequence, num_tokens: int) -> None:
        if not self._line:
            return
        for other in self._tree.gained(sequence, num_tokens, self._gains):
            self._withdraw(other.order)
            self._enter(other.order, self._cached.cached_tokens(other))

    def check(self) -> None:
        self._tree.check()
        assert self._line == sorted((-known, order) for order, known in self._known.items()), "the line is out of order"
        assert self._known.keys() == self._sequences.keys(), "hits of strangers are remembered"

    def _gains(self, sequence: Sequence, cached_tokens: int) -> bool:
        # At least one token is always left to compute, and hits are whole pages.
        page_size = self._cached.page_size
        usable = min(cached_tokens, len(sequence.key) - 1) // page_size * page_size
        return usable > self._known[sequence.order]

    def _enter(self, order: int, cached_tokens: int) -> None:
        self._known[order] = cached_tokens
        insort(self._line, (-cached_tokens, order))

    def _withdraw(self, order: int) -> None:
        del self._line[bisect_left(self._line, (-self._known[order], order))]


class DepthFirst:
    """Depth-first over the prefixes that waiting sequences share, the subtree with most of them first.

    A subtree that was begun is finished first: what it shares is in the cache by then.
    """

    def __init__(self) -> None:
        self._tree = PrefixTree()
        self._trail = b""  # the key of the one that started last

    def add(self, sequence: Sequence) -> None:
        self._tree.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._tree.remove(sequence)

    def ordered(self, is_ready: Readiness) -> Iterator[Sequence]:
        return filter(is_ready, self._tree.depth_first(self._trail))

    def started(self, sequence: Sequence) -> None:
        self._trail = packed_key(sequence)

    def published(self, sequence: Sequence, num_tokens: int) -> None:
        return

    def check(self) -> None:
        self._tree.check()


class TenantQueue:
    """The waiting sequences of one tenant and priority: those that go on, then new ones by their prefixes.

    So that no prefix makes another one wait for ever, one start of `AGED_EVERY` goes to the one that waits longest, if
    that is longer than `max_wait_s`.
    """

    def __init__(self, order: PrefixOrder, max_wait_s: float) -> None:
        self._order = order
        self._max_wait_s = max_wait_s
        self._begun: dict[int, Sequence] = {}  # by order; paused, or begun elsewhere
        self._new: dict[int, Sequence] = {}  # by order, in the order of arrival
        self.weight = 1.0  # of the tenant, as the latest request has it
        self.num_tokens = 0  # known of all those that wait
        self._starts_since_aged = 0
        self._aged: Sequence | None = None  # handed out because it waits too long

    def __len__(self) -> int:
        return len(self._begun) + len(self._new)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.order in self._new or sequence.order in self._begun

    def push(self, sequence: Sequence) -> None:
        if sequence.goes_on:
            self._begun[sequence.order] = sequence
        else:
            self._new[sequence.order] = sequence
            self._order.add(sequence)
        self.weight = sequence.request.weight
        self.num_tokens += sequence.num_known

    def remove(self, sequence: Sequence) -> None:
        if self._begun.pop(sequence.order, None) is None:
            del self._new[sequence.order]
            self._order.remove(sequence)
        self.num_tokens -= sequence.num_known

    def started(self, sequence: Sequence) -> None:
        """A sequence that was removed runs."""
        self._starts_since_aged = 0 if sequence is self._aged else self._starts_since_aged + 1
        self._aged = None
        self._order.started(sequence)

    def published(self, sequence: Sequence, num_tokens: int) -> None:
        self._order.published(sequence, num_tokens)

    def members(self) -> Iterator[Sequence]:
        yield from tuple(self._begun.values())
        yield from tuple(self._new.values())

    def contends(self) -> bool:
        """Whether somebody waits for his turn, and not for storage."""
        for waiting in (self._begun, self._new):
            for sequence in waiting.values():
                if sequence.prefetch is None or not sequence.prefetch.pending:
                    return True
        return False

    def longest_wait_s(self, now: float) -> float:
        """Return how long the first one waits that has come; of an empty queue, 0."""
        first = next(self.members(), None)
        return 0.0 if first is None else now - first.arrived_at

    def ordered(self, now: float, is_ready: Readiness) -> Iterator[Sequence]:
        """Yield those that are ready, the next to start first; those already yielded may be removed meanwhile."""
        for order in sorted(self._begun):
            sequence = self._begun.get(order)
            if sequence is not None and is_ready(sequence):
                yield sequence
        aged = self._overdue(now, is_ready)
        handed_out: set[int] = set()
        for sequence in self._order.ordered(is_ready):
            while self._starts_since_aged >= AGED_EVERY - 1:
                self._aged = next(aged, None)
                if self._aged is None:
                    break
                if self._aged.order not in handed_out:
                    handed_out.add(self._aged.order)
                    yield self._aged
            if sequence.order not in handed_out and sequence.order in self._new:
                handed_out.add(sequence.order)
                yield sequence

    def check(self) -> None:
        """Verify the invariants; raises AssertionError."""
        self._order.check()
        assert not self._begun.keys() & self._new.keys(), "a sequence waits twice"
        assert self.num_tokens == sum([each.num_known for each in self.members()]), "tokens that wait are miscounted"

    def _overdue(self, now: float, is_ready: Readiness) -> Iterator[Sequence]:
        for sequence in tuple(self._new.values()):
            if now - sequence.arrived_at <= self._max_wait_s:
                return
            if sequence.order in self._new and is_ready(sequence):
                yield sequence
