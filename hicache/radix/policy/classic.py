"""The policies that everybody knows. Pure functions of a leaf's own history."""

from dataclasses import dataclass
from typing import ClassVar

from hicache.radix.node import Node
from hicache.radix.policy.base import EvictionPolicy, Rank


@dataclass(frozen=True)
class LRU(EvictionPolicy):
    """Least recently used first."""

    name: ClassVar[str] = "lru"

    def rank(self, node: Node) -> Rank:
        return node.last_access_time

    def same_protection(self, upper: Node, lower: Node) -> bool:
        return True


@dataclass(frozen=True)
class MRU(EvictionPolicy):
    """Most recently used first: for scans longer than the pool, where whatever came last is needed last."""

    name: ClassVar[str] = "mru"

    def rank(self, node: Node) -> Rank:
        return -node.last_access_time

    def same_protection(self, upper: Node, lower: Node) -> bool:
        # Merged, both count as used when either was: a recent use of `upper` alone would bring `lower` forward.
        return upper.last_access_time <= lower.last_access_time


@dataclass(frozen=True)
class LFU(EvictionPolicy):
    """Least often hit first; among equals the least recently used."""

    name: ClassVar[str] = "lfu"

    def rank(self, node: Node) -> Rank:
        return node.hit_count, node.last_access_time

    def same_protection(self, upper: Node, lower: Node) -> bool:
        # Alone, `upper` would have the hits of both in the end.
        return not upper.hit_count


@dataclass(frozen=True)
class FIFO(EvictionPolicy):
    """First stored first, whatever is used."""

    name: ClassVar[str] = "fifo"

    def rank(self, node: Node) -> Rank:
        return node.stored_time

    def same_protection(self, upper: Node, lower: Node) -> bool:
        return True


@dataclass(frozen=True)
class FILO(EvictionPolicy):
    """Last stored first: what came early stays, whatever is used."""

    name: ClassVar[str] = "filo"

    def rank(self, node: Node) -> Rank:
        return -node.stored_time

    def same_protection(self, upper: Node, lower: Node) -> bool:
        # Merged, `upper` would go with its newest token.
        return upper.stored_time >= lower.stored_time


@dataclass(frozen=True)
class Priority(EvictionPolicy):
    """Least recently used first, where each level of priority is worth `bonus_s` seconds of age.

    A leaf of priority p counts as if it had been used p * bonus_s seconds later than it was. So an advantage fades: an
    idle leaf outlives those of k levels less by k * bonus_s seconds, however high its priority, and nothing has to be
    ranked anew while time goes by.
    """

    name: ClassVar[str] = "priority"
    bonus_s: float = 60.0

    def rank(self, node: Node) -> Rank:
        return node.last_access_time + node.priority * self.bonus_s

    def same_protection(self, upper: Node, lower: Node) -> bool:
        # Whoever protects `lower` protects `upper` with it.
        return upper.priority <= lower.priority
