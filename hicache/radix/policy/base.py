"""What an eviction policy is, and the queue that most of them are content with. Knows nodes; no clock, no tree."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar, Protocol

from hicache.radix.node import Node

# Ranks of one policy are comparable with each other; the smallest is evicted first.
Rank = Any

# A leaf that waits for its eviction: its rank, the ticket it got when it came, and the leaf itself.
Entry = tuple[Rank, int, Node]

_COMPACT_ABOVE = 64  # entries; below that, stale ones are not worth a thought


class VictimQueue(Protocol):
    """Leaves in the order of their eviction, equal ranks in the order of their tickets. Every operation costs
    O(log n), amortised.
    """

    def push(self, node: Node) -> None:
        """Enter a leaf, under the new ticket that it carries."""
        ...

    def cancel(self, node: Node) -> None:
        """Take out a leaf that is in. It still carries its ticket, and loses it as soon as this returns."""
        ...

    def first(self) -> Node:
        """Return the leaf to evict next, and leave it in. There must be one."""
        ...

    def entries(self) -> list[Entry]:
        """What is in, in no order, each at its rank of now."""
        ...


class EvictionPolicy(Protocol):
    """Orders leaves. Two leaves can be compared by their ranks of the same moment.

    Without state, a rank holds until somebody touches the leaf, and any number of queues can share a policy. A policy
    with state says what moves its ranks, and its own queue follows.
    """

    name: ClassVar[str]

    def rank(self, node: Node) -> Rank:
        """Return the place of this leaf in the order of eviction: smaller goes earlier."""
        ...

    def same_protection(self, upper: Node, lower: Node) -> bool:
        """Tell whether no token goes earlier when `upper` is merged with `lower`, its only child.

        Alone, `upper` would follow `lower` out, with the better of the two access times and priorities.
        """
        ...

    def queue(self) -> VictimQueue:
        """Return a new, empty queue in this policy's order."""
        return RankedQueue(self.rank)


class RankedQueue:
    """Leaves by their rank at entry: a lazy heap.

    Cancelling an entry only counts it off. It is skipped when it comes up, known by its ticket that nobody carries any
    more. Such entries never outnumber the others by more than a constant, or the heap is rebuilt.
    """

    def __init__(self, rank: Callable[[Node], Rank]) -> None:
        self._rank = rank
        self._heap: list[Entry] = []
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def push(self, node: Node) -> None:
        if len(self._heap) > 2 * self._live + _COMPACT_ABOVE:
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].ticket]
            heapify(self._heap)
        heappush(self._heap, (self._rank(node), node.ticket, node))
        self._live += 1

    def cancel(self, node: Node) -> None:
        self._live -= 1

    def first(self) -> Node:
        heap = self._heap
        while heap[0][1] != heap[0][2].ticket:
            heappop(heap)
        return heap[0][2]

    def pop(self) -> Node:
        """Take out the first leaf, which keeps its ticket."""
        node = self.first()
        heappop(self._heap)
        self._live -= 1
        return node

    def entries(self) -> list[Entry]:
        return [entry for entry in self._heap if entry[1] == entry[2].ticket]
