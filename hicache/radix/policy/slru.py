"""Segmented LRU: what was hit twice is out of reach of what came once, as long as it is used."""

from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

from hicache.radix.node import Node
from hicache.radix.policy.base import Entry, EvictionPolicy, RankedQueue


@dataclass(eq=False)
class SLRU(EvictionPolicy):
    """Leaves never hit go first, each segment in LRU order; the protected segment is bounded.

        probation   never hit, or demoted             goes first
        protected   hit, at most `protected_share`    goes when probation is empty
                    of all leaves

    A leaf that comes into a full protected segment drives out the coldest one there, to the place of its own age in
    probation; the next hit takes that one back. So nothing stays only because it was popular once.

    Has state, `demoted_until`: leaves last used up to then are on probation, hit or not. Queues that share an instance
    share that time, so that leaves can move between them; give each tier an instance of its own.
    """

    name: ClassVar[str] = "slru"
    protected_share: float = 0.8
    demoted_until: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.protected_share <= 1:
            raise ValueError(f"protected_share must be in 0..1, got {self.protected_share}")

    def protects(self, node: Node) -> bool:
        return node.hit_count > 0 and node.last_access_time > self.demoted_until

    def rank(self, node: Node) -> tuple[bool, float]:
        return self.protects(node), node.last_access_time

    def same_protection(self, upper: Node, lower: Node) -> bool:
        return not upper.hit_count or lower.hit_count > 0

    def queue(self) -> "SegmentedQueue":
        return SegmentedQueue(self)


class SegmentedQueue:
    """The two segments of SLRU, each a heap by age. A leaf is demoted at most once for each time that it is entered."""

    def __init__(self, policy: SLRU) -> None:
        self._policy = policy
        self._probation = RankedQueue(_age)
        self._protected = RankedQueue(_age)
        self._protected_tickets: set[int] = set()  # a leaf's history may have moved on before it is cancelled

    def push(self, node: Node) -> None:
        if not self._policy.protects(node):
            self._probation.push(node)
            return
        self._protected.push(node)
        self._protected_tickets.add(node.ticket)
        num_leaves = len(self._protected) + len(self._probation)
        if len(self._protected) > ceil(self._policy.protected_share * num_leaves):
            self._demote(self._protected.first())

    def cancel(self, node: Node) -> None:
        if node.ticket in self._protected_tickets:
            self._protected_tickets.remove(node.ticket)
            self._protected.cancel(node)
        else:
            self._probation.cancel(node)

    def first(self) -> Node:
        self._settle()
        return (self._probation or self._protected).first()

    def entries(self) -> list[Entry]:
        self._settle()
        probation = [((False, age), ticket, node) for age, ticket, node in self._probation.entries()]
        protected = [((True, age), ticket, node) for age, ticket, node in self._protected.entries()]
        return probation + protected

    def _demote(self, oldest: Node) -> None:
        self._policy.demoted_until = max(self._policy.demoted_until, oldest.last_access_time)
        self._settle()

    def _settle(self) -> None:
        """Move what is demoted by now to its place in probation."""
        protected = self._protected
        while protected and not self._policy.protects(protected.first()):
            self._protected_tickets.remove(protected.first().ticket)
            self._probation.push(protected.pop())


def _age(node: Node) -> float:
    return node.last_access_time
