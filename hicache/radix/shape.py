"""What a radix tree consists of, and how nodes are split, merged, locked and counted. Finds and adds nothing.

Lengths and offsets are in bytes throughout, TOKEN_BYTES for each token.
"""

from hicache.keys import TOKEN_BYTES
from hicache.radix.naming import PageNames
from hicache.radix.node import NO_CHILDREN, NO_SLOTS, Edge, Node, Roots
from hicache.radix.policy import EvictionPolicy
from hicache.radix.queues import Queues
from hicache.radix.shares import Shares
from hicache.radix.watch import IgnoredChanges, TierWatcher


class TreeShape:
    """The nodes by namespace. Invariants, all verified by `hicache.radix.audit`:

    - Siblings differ in their first page, or are roots of different namespaces. Only roots are empty, and every root
      has children.
    - What is on the device has its whole path there; every node is on the device, on the host, or on both.
    - A node is locked while a lease ends in it or below it.
    - A lease ends at the end of a node, and nothing moves that end: a split makes a new node for the upper part, a
      merge keeps the lower node, and a leaf is extended in place only when no other lease ends there and the host has
      no copy of it.
    """

    def __init__(
        self,
        page_size: int,
        policy: EvictionPolicy,
        shares: Shares,
        names: PageNames | None = None,
        watcher: TierWatcher | None = None,
    ) -> None:
        self.page_bytes = page_size * TOKEN_BYTES
        self.policy = policy
        self.queues = Queues(policy, shares)
        self.roots = Roots()
        self.names = names
        self.watcher = watcher or IgnoredChanges()
        self.cached_bytes = 0  # device values of all nodes, those of dropped ones that a lease still holds included
        self.locked_bytes = 0  # the part of it that is locked
        self.num_nodes = 0  # roots and dropped nodes not included
        self.num_leaves = 0
        self.shares = shares

    # Reshaping

    def split(self, lower: Node, size: int) -> Node:
        """Cut the first `size` bytes off a node and return them as its new parent. Leases that end in the node stay."""
        parent = lower.parent
        assert parent is not None
        upper = Node(lower.key[:size], lower.value[:size] or NO_SLOTS, parent, lower.space, lower.stored_time)
        upper.lock_ref = 1 if lower.lock_ref else 0
        # Copies on both sides: a view, or a buffer cut at its front, would keep the whole run's memory alive.
        lower.key = lower.key[size:]
        if lower.value:
            lower.value = lower.value[size:]
            upper.device_children = 1
            upper.settled = lower.settled
            upper.blockers = 0 if lower.settled else 1
        lower.parent = upper
        parent.children[self.edge(upper)] = upper
        if parent.recent is lower:
            parent.recent = upper
        upper.adopt(self.edge(lower), lower)
        self.num_nodes += 1
        if lower.host_value:
            self._split_on_host(lower, upper, size)
        if self.names is not None:
            self.names.split(upper, lower)
        return upper

    def _split_on_host(self, lower: Node, upper: Node, size: int) -> None:
        upper.host_value, lower.host_value = lower.host_value[:size], lower.host_value[size:]
        upper.mirroring = lower.mirroring
        upper.holders = lower.holders
        upper.host_ref_counter = len(lower.holders)
        for holder in lower.holders:
            holder.nodes.append(upper)
        self.queues.place(upper)

    def merge_with_only_child(self, upper: Node) -> None:
        """Undo a split that serves nobody: no lease ends in `upper`, and its one child is as well protected."""
        parent = upper.parent
        if parent is None or upper.is_root or upper.space is None or len(upper.children) != 1:
            return
        if upper in self.queues.fixed:
            return
        (lower,) = upper.children.values()
        if lower.is_root or upper.lock_ref != (1 if lower.lock_ref else 0) or parent.space is None:
            return
        if not _same_tiers(upper, lower) or not self.policy.same_protection(upper, lower):
            return
        self.queues.forget(upper)
        if self.names is not None:
            self.names.merge(upper, lower)
        # The upper buffers grow and move down: O(lower), however long the shared prefix is.
        upper.key += lower.key
        lower.key = upper.key
        if lower.value:
            upper.value += lower.value
            lower.value = upper.value
        if lower.host_value:
            upper.host_value += lower.host_value
            lower.host_value = upper.host_value
        lower.parent = parent
        parent.children[self.edge(lower)] = lower
        if parent.recent is upper:
            parent.recent = lower
        upper.parent, upper.children, upper.recent = None, NO_CHILDREN, None
        self.num_nodes -= 1
        if upper.last_access_time > lower.last_access_time:
            lower.last_access_time = upper.last_access_time
            if lower.queue is not None:
                self.queues.replace(lower)

    def edge(self, node: Node) -> Edge:
        if node.is_root:
            assert node.space is not None
            return node.space.namespace
        return bytes(node.key[: self.page_bytes])

    # Protecting

    def lock(self, node: Node) -> None:
        """Let a lease end in `node`: protect it and the path above it."""
        above: Node | None = node
        while above is not None:
            if above.lock_ref:
                above.lock_ref += 1
                self.locked_bytes -= above.depth  # locked already, with all that is above
                break
            above.lock_ref = 1
            above = above.parent
        self.locked_bytes += node.depth
        if node.queue is not None:
            self.queues.withdraw(node)
        if node.settled:
            self.queues.unsettle(node)
        if not self.queues.alone:
            self._charge(node, above, 1)

    def unlock(self, node: Node) -> None:
        """Undo one `lock`, unless something of the path was dropped meanwhile."""
        above: Node | None = node
        while above is not None:
            count = above.lock_ref = above.lock_ref - 1
            if count:
                self.locked_bytes += above.depth
                break
            above = above.parent
        self.locked_bytes -= node.depth
        if not self.queues.alone:
            self._charge(node, above, -1)
        if not node.lock_ref and not node.blockers:
            self.queues.place(node)
        self.merge_with_only_child(node)

    def _charge(self, node: Node, until: Node | None, sign: int) -> None:
        """Count what a lock has protected, or protects no longer, for those it belongs to."""
        above: Node | None = node
        while above is not None and above is not until:
            if above.space is not None:
                above.space.account.locked_bytes += sign * len(above.value)
            above = above.parent

    # Counting

    def count_on_device(self, node: Node, size: int) -> None:
        """The device holds `size` bytes more of a node; less, if that is negative."""
        assert node.space is not None
        self.cached_bytes += size
        node.space.count_on_device(size)

    def _count_locked(self, node: Node, size: int) -> None:
        self.locked_bytes += size
        if not self.queues.alone and node.space is not None:
            node.space.account.locked_bytes += size


def _same_tiers(upper: Node, lower: Node) -> bool:
    return (
        upper.settled == lower.settled
        and bool(upper.value) == bool(lower.value)
        and bool(upper.host_value) == bool(lower.host_value)
        and not (upper.mirroring or upper.host_ref_counter or lower.mirroring or lower.holders)
    )
