"""The unlocked leaves in the order of their eviction, kept up to date as they are touched. Knows no tree."""

from collections.abc import Iterator
from itertools import count

from hicache.radix.node import Node
from hicache.radix.policy import Entry, EvictionPolicy


class Victims:
    """Gives each leaf that may go a ticket, and leaves the order to the policy's queue.

    Invariant: a leaf carries a ticket exactly while it is in. Every operation costs O(log n), amortised.
    """

    def __init__(self, policy: EvictionPolicy, tickets: Iterator[int] | None = None) -> None:
        """`tickets` are shared by queues among which leaves move: a ticket of one must mean nothing in another."""
        self.policy = policy
        self._queue = policy.queue()
        self._live = 0
        self._tickets = count(1) if tickets is None else tickets

    def __len__(self) -> int:
        return self._live

    def add(self, node: Node) -> None:
        """Enter a leaf that is not in, at its rank of now. Equal ranks go in the order of their entry."""
        node.ticket = next(self._tickets)
        self._queue.push(node)
        self._live += 1

    def discard(self, node: Node) -> None:
        """Take a leaf out, if it is in."""
        if node.ticket:
            self._queue.cancel(node)
            node.ticket = 0
            self._live -= 1

    def first(self) -> Node:
        """Return the leaf to evict next, and leave it in. There must be one."""
        return self._queue.first()

    def entries(self) -> list[Entry]:
        """The leaves that are in with their ranks of now, in no order."""
        return self._queue.entries()
