"""Least hit density: evict what promises the fewest hits for each second that its slots stay taken."""

from dataclasses import dataclass, field
from typing import ClassVar

from hicache.radix.node import Node
from hicache.radix.policy.base import Entry, EvictionPolicy, RankedQueue
from hicache.radix.policy.returns import NUM_CLASSES, Conversations, Returns


@dataclass(eq=False)
class LHD(EvictionPolicy):
    """Learns from the traffic how likely a conversation comes back, by its turns so far and the time it has been idle.

    LRU gives each conversation the same time. But one that has had five turns comes back more often than one that has
    had one, and nobody comes back within the seconds it takes to read an answer: when the pool is much too small, what
    has just come is the better victim, because otherwise nothing ever lives long enough to be hit.

    A leaf's rank is its hit density: hits to expect until some horizon, for each second until then or until the hit,
    at the best horizon (the Gittins index of its class at its age). Where little is known yet, all classes have
    densities that fall with age: LRU. After Beckmann, Chen and Cidon, "LHD: improving cache hit rate by maximizing hit
    density" (NSDI 2018), with the turns of a conversation as class, and returns learned from what was evicted, too.

    Has state that its queues share, so that leaves can move between them. The clock is the newest time it has seen.
    """

    name: ClassVar[str] = "lhd"
    num_remembered: int = 1 << 16  # conversations, evicted ones included; about 200 bytes each
    clock: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        self._returns = Returns()
        self._conversations = Conversations(self.num_remembered)
        self._classes: dict[Node, int] = {}  # of the leaves in a queue, as they were at their entry

    def rank(self, node: Node) -> tuple[float, float]:
        age = self.clock - node.last_access_time
        return self._returns.rank(self._classes.get(node, 0), age)

    def same_protection(self, upper: Node, lower: Node) -> bool:
        # Merged, both count as used when either was, which changes the density of `lower` in either direction.
        return upper.last_access_time <= lower.last_access_time

    def queue(self) -> "ClassedQueue":
        return ClassedQueue(self)

    def enter(self, node: Node) -> int:
        """Learn from a leaf that comes into a queue, and return its class until `leave`."""
        now = node.last_access_time
        self.clock = max(self.clock, now)
        visit = self._conversations.visit(node)
        if visit.is_new:
            if visit.turn:
                self._returns.returned(visit.turn - 1, visit.idle_s)
            self._returns.started(visit.turn)
        self._classes[node] = group = min(visit.turn, NUM_CLASSES - 1)
        return group

    def leave(self, node: Node) -> int:
        """Return the class that `enter` gave it, and forget it."""
        return self._classes.pop(node)


class ClassedQueue:
    """Leaves by class, each class by age from both ends: in each, density only rises up to an age and then only falls,
    so that the next victim is the oldest or the youngest of its class.
    """

    def __init__(self, policy: LHD) -> None:
        self._policy = policy
        self._oldest = [RankedQueue(_last_used) for _ in range(NUM_CLASSES)]
        self._youngest = [RankedQueue(_last_used_reversed) for _ in range(NUM_CLASSES)]

    def push(self, node: Node) -> None:
        group = self._policy.enter(node)
        self._oldest[group].push(node)
        self._youngest[group].push(node)

    def cancel(self, node: Node) -> None:
        group = self._policy.leave(node)
        self._oldest[group].cancel(node)
        self._youngest[group].cancel(node)

    def first(self) -> Node:
        ends = [queue.first() for queues in (self._oldest, self._youngest) for queue in queues if queue]
        return min(ends, key=lambda node: (self._policy.rank(node), node.ticket))

    def entries(self) -> list[Entry]:
        nodes = [node for queue in self._oldest for _, _, node in queue.entries()]
        return [(self._policy.rank(node), node.ticket, node) for node in nodes]


def _last_used(node: Node) -> float:
    return node.last_access_time


def _last_used_reversed(node: Node) -> float:
    return -node.last_access_time
