"""The order in which leaves are evicted, kept up to date as they are touched. Knows nodes and a policy, no tree."""

from heapq import heapify, heappop, heappush

from hicache.node import Node
from hicache.policy import EvictionPolicy, Rank

_COMPACT_ABOVE = 64  # entries; below that, stale ones are not worth a thought


class Victims:
    """The unlocked leaves, in the policy's order. Every operation costs O(log n), amortised.

    A lazy heap: taking a leaf out only cancels its ticket, and its entry is skipped when it comes up. Stale entries
    never outnumber the live ones by more than a constant, or the heap is rebuilt.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self._heap: list[tuple[Rank, int, Node]] = []
        self._live = 0
        self._last_ticket = 0

    def __len__(self) -> int:
        return self._live

    def add(self, node: Node) -> None:
        """Enter a leaf that is not in, at its rank of now. Equal ranks go in the order of their entry."""
        if len(self._heap) > 2 * self._live + _COMPACT_ABOVE:
            self._heap = self.entries()
            heapify(self._heap)
        self._last_ticket += 1
        node.ticket = self._last_ticket
        heappush(self._heap, (self.policy.rank(node), node.ticket, node))
        self._live += 1

    def discard(self, node: Node) -> None:
        """Take a leaf out, if it is in."""
        if node.ticket:
            node.ticket = 0
            self._live -= 1

    def first(self) -> Node:
        """Return the leaf to evict next, and leave it in. There must be one."""
        heap = self._heap
        while heap[0][1] != heap[0][2].ticket:
            heappop(heap)
        return heap[0][2]

    def entries(self) -> list[tuple[Rank, int, Node]]:
        """The live entries, in no order."""
        return [entry for entry in self._heap if entry[1] == entry[2].ticket]
