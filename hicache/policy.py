"""Which leaf goes first when slots run out. Pure functions of a node's own history; no clock, no tree."""

from typing import Any, Protocol

from hicache.node import Node

# Ranks of one policy are comparable with each other; the smallest is evicted first.
Rank = Any


class EvictionPolicy(Protocol):
    """Orders leaves. A rank is taken when a leaf becomes evictable and must hold until somebody touches the leaf."""

    @property
    def name(self) -> str: ...

    def rank(self, node: Node) -> Rank:
        """Return the place of this leaf in the order of eviction: smaller goes earlier."""
        ...

    def same_protection(self, upper: Node, lower: Node) -> bool:
        """Tell whether `upper` loses or lends no protection when it is merged with `lower`, its only child."""
        ...


class LRU:
    """Least recently used first."""

    name = "lru"

    def rank(self, node: Node) -> Rank:
        return node.last_access_time

    def same_protection(self, upper: Node, lower: Node) -> bool:
        return True


class LFU:
    """Least often hit first; among equals the least recently used."""

    name = "lfu"

    def rank(self, node: Node) -> Rank:
        return node.hit_count, node.last_access_time

    def same_protection(self, upper: Node, lower: Node) -> bool:
        return upper.hit_count == lower.hit_count


class FIFO:
    """First stored first, whatever is used."""

    name = "fifo"

    def rank(self, node: Node) -> Rank:
        return node.stored_time

    def same_protection(self, upper: Node, lower: Node) -> bool:
        return True


class Priority:
    """Lowest priority first; among equals the least recently used."""

    name = "priority"

    def rank(self, node: Node) -> Rank:
        return node.priority, node.last_access_time

    def same_protection(self, upper: Node, lower: Node) -> bool:
        # Whoever protects `lower` protects `upper` with it.
        return upper.priority <= lower.priority


_POLICIES: tuple[type[LRU] | type[LFU] | type[FIFO] | type[Priority], ...] = (LRU, LFU, FIFO, Priority)
NAMES = tuple(policy.name for policy in _POLICIES)


def by_name(name: str) -> EvictionPolicy:
    """Return the policy of that name; ValueError names the ones there are."""
    for policy in _POLICIES:
        if policy.name == name:
            return policy()
    raise ValueError(f"unknown eviction policy {name!r}, expected one of {', '.join(NAMES)}")
