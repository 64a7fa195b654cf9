"""How nodes leave: from the device to the host, from the host, and from the tree. Decides nothing about when.

What a node has where, and how that changes:

    device    host      state        leaves by
    ------    ------    ---------    --------------------------------------------------------------------------------
    yes       no        dirty        `evict`: lost. The mirror starts: flying
    yes       filling   flying       the mirror ends: settled, or spare if it is used meanwhile. It fails or stalls:
                                     dirty. `evict`: lost
    yes       yes       spare        its turn to be mirrored comes: settled, without a copy. `evict`: cold.
                                     `evict_on_host`: dirty
    yes       yes       settled      `evict`: cold. Somebody uses it: spare
    no        yes       cold         `evict_on_host`: lost. Loaded back or computed again: spare
    no        no        -            not in the tree. Its pages may be in storage, which brings them back as cold

Dropping a namespace loses its nodes in any state. Slots that a copy or a page on its way to storage still uses are not
free before that has ended: they stay with a ghost, a node outside of the tree.
"""

from typing import Protocol

from hicache.keys import Namespace
from hicache.radix.node import NO_CHILDREN, NO_SLOTS, Account, Edge, Holder, Node
from hicache.radix.queues import inherit
from hicache.radix.tree import RadixTree


class HostSlots(Protocol):
    """Takes back host slots."""

    @property
    def num_slots(self) -> int: ...

    def free_packed(self, value: bytearray) -> None: ...


class Removal:
    """Takes nodes out of the tiers and out of the tree."""

    def __init__(self, tree: RadixTree, host: HostSlots) -> None:
        self._tree = tree
        self._queues = tree.queues
        self._host = host
        self._limbo: list[Node] = []  # tops of what was dropped, not looked at yet
        self._broods: list[dict[Edge, Node]] = []  # children of what was looked at; none is empty
        self.lost_bytes = 0  # evicted from the device and nowhere else, since the start
        self.moved_bytes = 0  # evicted from the device and still on the host
        self.host_lost_bytes = 0  # evicted from the host and nowhere else

    @property
    def has_limbo(self) -> bool:
        return bool(self._limbo or self._broods)

    @property
    def limbo(self) -> list[Node]:
        """The tops of what was dropped and not looked at yet."""
        return [*self._limbo, *(child for brood in self._broods for child in brood.values())]

    # The device

    def evict(self, size: int, claimant: Account) -> list[bytearray]:
        """Free `size` bytes of device values, coldest first; the last node is trimmed to what is needed.

        `size` is in whole pages. Frees less where the rest is locked, or promised to others than the claimant.
        """
        freed: list[bytearray] = []
        while size > 0:
            found = self._queues.next_on_device(claimant)
            if found is None:
                break
            node, most = found
            part = min(size, most, len(node.value))
            size -= part
            freed.append(self._to_host(node, part) if node.mirrored else self._lose(node, part))
        return freed

    def _to_host(self, node: Node, part: int) -> bytearray:
        """Take the last `part` bytes of a device leaf off the device; the host has them."""
        tree = self._tree
        if part < len(node.value):
            tree.split(node, len(node.value) - part)
        self._queues.withdraw(node)
        settled = node.settled
        if settled:
            self._queues.settled_bytes -= part
            node.settled = False
        value, node.value = node.value, NO_SLOTS
        if node.parent is not None and node.parent.recent is node:
            node.parent.recent = None
        tree.count_on_device(node, -part)
        self.moved_bytes += part
        above = node.above
        if above is not None:
            self._pass_on(node, above)
        self._queues.child_left(above, settled=settled)
        self._queues.place(node)
        tree.watcher.moved(node, node.depth - part)
        tree.merge_with_only_child(node)
        return value

    def _lose(self, node: Node, part: int) -> bytearray:
        """Take the last `part` bytes of a device leaf out of the tree; nobody else has them."""
        tree = self._tree
        self.lost_bytes += part
        if node.host_value:
            self.forget_on_host(node)  # its mirror is under way
        if node.children:
            self._forget_below(node)
        tree.watcher.removed(node, node.depth - part, "device")
        if part == len(node.value):
            value = node.value
            tree.count_on_device(node, -part)
            self._remove_leaf(node)
            return value
        keep = len(node.value) - part
        value = node.value[keep:]
        del node.key[keep:], node.value[keep:]
        node.depth -= part
        if tree.names is not None:
            tree.names.trim(node)
        tree.count_on_device(node, -part)
        return value

    def _forget_below(self, node: Node) -> None:
        """What only the host has below a node that goes can't be reached any more."""
        pending = list(node.children.values())
        node.children, node.recent = NO_CHILDREN, None
        while pending:
            below = pending.pop()
            self.host_lost_bytes += len(below.host_value)
            pending.extend(below.children.values())
            freed = self._detach(below)
            assert freed is None
        self._tree.num_leaves += 1

    # The host

    def evict_on_host(self, size: int, claimant: Account) -> int:
        """Free `size` bytes of host values: copies that nobody needs yet, then the coldest of what is only there.

        Returns how much was freed: more where a node could not be cut, less where the rest is in use.
        """
        freed = 0
        while freed < size and self._queues.spare:
            node = next(iter(self._queues.spare))
            freed += len(node.host_value)
            self._tree.watcher.removed(node, node.depth - len(node.key), "host")
            self.forget_on_host(node)
            self._tree.merge_with_only_child(node)
        while freed < size:
            found = self._queues.next_on_host(claimant)
            if found is None:
                break
            node, most = found
            part = min(size - freed, most, len(node.host_value))
            if part < len(node.host_value):
                self._tree.split(node, len(node.host_value) - part)
            freed += part
            self.host_lost_bytes += part
            self._tree.watcher.removed(node, node.depth - part, "host")
            self.forget_on_host(node)
            self._remove_leaf(node)
        return freed

    def forget_on_host(self, node: Node) -> None:
        """Take what a node has on the host away from it. It is freed at once, or when its holders have ended."""
        if node.settled:
            self._queues.unsettle(node)
        self._queues.forget(node)
        size = len(node.host_value)
        if node.space is not None:
            node.space.count_on_host(-size)
        if node.holders:
            _make_ghost(node)
        else:
            self._host.free_packed(node.host_value)
        node.host_value = NO_SLOTS
        node.mirroring = False
        self._queues.place(node)

    def hold(self, node: Node, holder: Holder) -> None:
        """`holder` begins to use the host slots of `node`."""
        node.holders = (*node.holders, holder)
        node.host_ref_counter += 1
        self._queues.replace(node)

    def let_go(self, node: Node, holder: Holder) -> None:
        """`holder` has ended, and does not use the host slots of `node` any more."""
        node.holders = tuple(other for other in node.holders if other is not holder)
        node.host_ref_counter -= 1
        if node.space is None:
            if not node.host_ref_counter:
                self._host.free_packed(node.host_value)
                node.host_value = NO_SLOTS
        else:
            self._queues.replace(node)

    # Namespaces

    def drop(self, namespace: Namespace) -> None:
        """Cut a namespace off, with everything below it: out of reach at once. `reap` frees what it held."""
        roots = self._tree.roots
        for root in roots.of(namespace):
            barrier = root.parent
            roots.uproot(root)
            if barrier is None:
                self._limbo.append(root)
            elif barrier.space is not None:  # otherwise it is in limbo already, as what lay below the barrier
                self._limbo.append(root)
                self._queues.fixed[barrier] = None
                self._after_loss(barrier)

    def reap(self, max_nodes: int) -> list[bytearray]:
        """Free what was dropped, some nodes of it. What is locked stays allocated until its last lease ends."""
        freed: list[bytearray] = []
        while max_nodes > 0 and self.has_limbo:
            node = self._next_dropped()
            if node.children:
                self._broods.append(node.children)
            max_nodes -= 1
            value = self._detach(node)
            if value is not None:
                freed.append(value)
        if not self.has_limbo:
            self._let_move()
        return freed

    def _next_dropped(self) -> Node:
        """Take one node of what was dropped: one by one, because a node may have any number of children."""
        if self._limbo:
            return self._limbo.pop()
        brood = self._broods[-1]
        _, node = brood.popitem()
        if not brood:
            self._broods.pop()
        return node

    def _let_move(self) -> None:
        """Nothing that was dropped needs its path any more."""
        fixed, self._queues.fixed = self._queues.fixed, {}
        for barrier in fixed:
            if barrier.space is not None:
                if not barrier.value:
                    self._queues.replace(barrier)
                self._tree.merge_with_only_child(barrier)

    def unlock_dropped(self, node: Node) -> list[bytearray]:
        """Undo one `lock` of a path of which any part may be dropped. Returns the values that nobody holds any more."""
        freed: list[bytearray] = []
        above: Node | None = node
        while above is not None:
            above.lock_ref -= 1
            if above.lock_ref:
                break
            parent = above.parent
            if above.space is None:
                freed.append(above.value)
                self._tree.cached_bytes -= len(above.value)
            self._release(above)
            above = parent
        return freed

    def _release(self, node: Node) -> None:
        """The last lease in or below a node has ended."""
        tree = self._tree
        tree.locked_bytes -= len(node.value)
        if node.space is None:
            return
        if not self._queues.alone:
            node.space.account.locked_bytes -= len(node.value)
        if node.value and not node.blockers:
            self._queues.place(node)
        tree.merge_with_only_child(node)

    def _detach(self, node: Node) -> bytearray | None:
        """Take a node out of reach whose parent is, or is about to be. Returns its device value if nobody holds it."""
        tree, space = self._tree, node.space
        assert space is not None
        size = len(node.value)
        if node.is_root:
            tree.roots.uproot(node)
        else:
            tree.num_nodes -= 1
            tree.num_leaves -= 0 if node.children else 1
            self._watch_removal(node)
            if node.host_value:
                self.forget_on_host(node)
            self._queues.forget(node)
        if node.value:
            above = node.above
            if above is not None and above.space is not None:
                self._queues.child_left(above, settled=False)
            space.count_on_device(-size)
            if node.lock_ref and not self._queues.alone:
                space.account.locked_bytes -= size
        node.space = None
        node.children, node.recent = NO_CHILDREN, None
        if node.lock_ref:
            return None
        tree.cached_bytes -= size
        return node.value if size else None

    def _watch_removal(self, node: Node) -> None:
        begin = node.depth - len(node.key)
        if node.value:
            self._tree.watcher.removed(node, begin, "device")
        if node.mirrored:
            self._tree.watcher.removed(node, begin, "host")

    # Leaves

    def _remove_leaf(self, leaf: Node) -> None:
        """Take a leaf out that no tier holds any more."""
        tree, parent, above = self._tree, leaf.parent, leaf.above
        assert parent is not None
        self._queues.forget(leaf)
        tree.num_nodes -= 1
        tree.num_leaves -= 1
        leaf.parent = None
        parent.disown(tree.edge(leaf))
        if above is not None:
            hit_count = above.hit_count + leaf.hit_count if leaf.value else 0
            self._pass_on(leaf, above)
            above.hit_count = max(above.hit_count, hit_count)  # in no queue, while it has a leaf on the device
        if leaf.value:
            self._queues.child_left(above, settled=False)
        leaf.space = None
        self._after_loss(parent)

    def _pass_on(self, node: Node, above: Node) -> None:
        """`node` leaves a tier, and what lies above it stays. That may be in a queue: settled nodes did this before."""
        before = above.last_access_time, above.priority, above.hit_count
        inherit(above, node)
        if above.queue is not None and before != (above.last_access_time, above.priority, above.hit_count):
            self._queues.replace(above)

    def _after_loss(self, node: Node) -> None:
        """Put a node right that has just lost a child."""
        tree = self._tree
        if node.children:
            tree.merge_with_only_child(node)
        elif not node.is_root:
            tree.num_leaves += 1
            if not node.value:
                self._queues.replace(node)
        else:
            barrier = node.parent
            tree.roots.uproot(node)
            if barrier is not None:
                self._after_loss(barrier)


def _make_ghost(node: Node) -> None:
    """Hand the host slots of a node that leaves, and their holders, to a node outside of the tree."""
    ghost = Node(bytearray(), NO_SLOTS, None, None, 0.0)
    ghost.host_value = node.host_value
    ghost.holders = node.holders
    ghost.host_ref_counter = len(node.holders)
    node.host_ref_counter -= len(node.holders)
    node.holders = ()
    for holder in ghost.holders:
        nodes = holder.nodes
        nodes[nodes.index(node)] = ghost
