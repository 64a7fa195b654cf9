"""The radix tree: finds, splits, grows, merges, locks and evicts nodes. Knows tokens and slot ids as packed bytes.

Knows nothing of free slots, leases or tensors: it says which slots came back, and the cache returns them to the pool.
Lengths and offsets are in bytes throughout, TOKEN_BYTES for each token.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hicache.keys import TOKEN_BYTES, Namespace, Part
from hicache.node import Edge, Node, Roots
from hicache.packed import shared_bytes
from hicache.policy import EvictionPolicy
from hicache.victims import Victims


class Insertion(NamedTuple):
    """Where an inserted key ends, how deep that is, and the first and last byte of what had been there already."""

    node: Node | None
    depth: int
    duplicates: list[tuple[int, int]]


class RadixTree:
    """Prefixes by namespace. Invariants, all verified by `hicache.audit`:

    - Siblings differ in their first page, or are roots of different namespaces. Only roots are empty, and every root
      has children.
    - A node is locked while a lease ends in it or below it.
    - The victims are exactly the unlocked leaves.
    - A lease ends at the end of a node, and nothing moves that end: a split makes a new node for the upper part, a
      merge keeps the lower node, and a leaf is extended in place only when no other lease ends there.
    """

    def __init__(self, page_size: int, policy: EvictionPolicy) -> None:
        self.page_bytes = page_size * TOKEN_BYTES
        self.policy = policy
        self.victims = Victims(policy)
        self.roots = Roots()
        self.cached_bytes = 0  # values of all nodes, those of dropped ones that a lease still holds included
        self.locked_bytes = 0  # the part of it that is locked
        self.num_nodes = 0  # roots and dropped nodes not included
        self.num_leaves = 0

    # Finding

    def match(
        self, parts: Sequence[Part], limit: int, now: float, priority: int
    ) -> tuple[Node | None, list[bytearray]]:
        """Find and lock the longest cached prefix of at most `limit` bytes, which are whole pages.

        Returns its last node, for `unlock`, and the values along its path; the node in whose middle it ends is split.
        """
        values: list[bytearray] = []
        last: Node | None = None
        page_bytes = self.page_bytes
        start = 0
        for namespace, packed, size in parts:
            node = self.roots.below(last, namespace)
            if node is None:
                break
            stop = min(size, limit - start)
            offset = 0
            begins_with = packed.startswith
            while offset < stop:
                child = node.children.get(packed[offset : offset + page_bytes])
                if child is None:
                    break
                if not begins_with(child.key, offset, stop):
                    shared = shared_bytes(packed, offset, stop, child.key, page_bytes)
                    if not shared:
                        break
                    child = self._split(child, shared)
                node = last = child
                node.hit_count += 1
                values.append(node.value)
                offset = node.depth - start
            if offset < size:
                break
            start += size
        if last is not None:
            self.lock(last)
            _touch(last, now, priority)
        return last, values

    def match_length(self, parts: Sequence[Part], limit: int) -> int:
        """Return how many bytes `match` would find, and change nothing."""
        found = 0
        last: Node | None = None
        page_bytes = self.page_bytes
        for namespace, packed, size in parts:
            node = self.roots.below(last, namespace)
            if node is None:
                break
            stop = min(size, limit - found)
            offset = 0
            while offset < stop:
                child = node.children.get(packed[offset : offset + page_bytes])
                if child is None:
                    break
                shared = shared_bytes(packed, offset, stop, child.key, page_bytes)
                offset += shared
                if shared < len(child.key):
                    return found + offset  # nothing hangs below the middle of a node, no other namespace either
                node = last = child
            found += offset
            if offset < size:
                break
        return found

    # Growing

    def insert(
        self, held: Node | None, depth: int, parts: Sequence[Part], value: memoryview, now: float, priority: int
    ) -> Insertion:
        """Add a key below `held`, the locked node at `depth` where its lease ends so far, and move the lock to its end.

        `value` holds the slots of what lies behind `depth`. Costs O(new part): nothing above `held` is looked at.
        """
        node = held
        duplicates: list[tuple[int, int]] = []
        start, position = 0, depth
        for namespace, packed, size in parts:
            offset = position - start
            if offset < size:
                if not offset:
                    node = self.roots.below(node, namespace) or self._new_root(node, namespace)
                assert node is not None
                node, known = self._descend(node, packed, offset, size)
                if known > offset:
                    duplicates.append((position, start + known))
                if known < size:
                    fresh = value[start + known - depth : start + size - depth]
                    node = self._grow(node, held, packed[known:size], fresh, now, priority)
                position = start + size
            start += size
        if node is not None:
            if node is not held:
                self.lock(node)
                if held is not None:
                    self.unlock(held)
            _touch(node, now, priority)
        return Insertion(node, position, duplicates)

    def _descend(self, node: Node, packed: bytes, offset: int, size: int) -> tuple[Node, int]:
        """Follow what is there already, splitting where the key leaves it. Returns the node reached and its offset."""
        page_bytes = self.page_bytes
        while offset < size:
            child = node.children.get(packed[offset : offset + page_bytes])
            if child is None:
                break
            shared = shared_bytes(packed, offset, size, child.key, page_bytes)
            node = child if shared == len(child.key) else self._split(child, shared)
            offset += shared
        return node, offset

    def _grow(self, node: Node, held: Node | None, key: bytes, value: memoryview, now: float, priority: int) -> Node:
        """Attach a run of new tokens behind `node`, in place if it is a leaf that nobody else's lease ends in.

        Returns the node that ends with it, which is no victim: `insert` is about to lock it.
        """
        self.cached_bytes += len(key)
        if node.key and not node.children and node.lock_ref == (node is held):
            self.victims.discard(node)
            node.key += key
            node.value += value
            node.depth += len(key)
            node.stored_time = now
            if node.lock_ref:
                self.locked_bytes += len(key)
            return node
        child = Node(bytearray(key), bytearray(value), node, node.space, now, priority)
        self.num_nodes += 1
        self.num_leaves += 1 if node.is_root or node.children else 0
        node.adopt(key[: self.page_bytes], child)
        return child

    def _new_root(self, barrier: Node | None, namespace: Namespace) -> Node:
        if barrier is not None:
            self.num_leaves -= 0 if barrier.children else 1
            self.victims.discard(barrier)
        return self.roots.plant(barrier, namespace)

    # Reshaping

    def _split(self, lower: Node, size: int) -> Node:
        """Cut the first `size` bytes off a node and return them as its new parent. Leases that end in the node stay."""
        parent = lower.parent
        assert parent is not None
        upper = Node(lower.key[:size], lower.value[:size], parent, lower.space, lower.stored_time)
        upper.hit_count = lower.hit_count
        upper.lock_ref = 1 if lower.lock_ref else 0
        # Copies on both sides: a view, or a buffer cut at its front, would keep the whole run's memory alive.
        lower.key = lower.key[size:]
        lower.value = lower.value[size:]
        lower.parent = upper
        parent.children[self._edge(upper)] = upper
        upper.adopt(self._edge(lower), lower)
        self.num_nodes += 1
        return upper

    def _merge_with_only_child(self, upper: Node) -> None:
        """Undo a split that serves nobody: no lease ends in `upper`, and its one child is as well protected."""
        parent = upper.parent
        if parent is None or upper.is_root or upper.space is None or len(upper.children) != 1:
            return
        (lower,) = upper.children.values()
        if lower.is_root or upper.lock_ref != (1 if lower.lock_ref else 0):
            return
        if not self.policy.same_protection(upper, lower):
            return
        # The upper buffers grow and move down: O(lower), however long the shared prefix is.
        upper.key += lower.key
        upper.value += lower.value
        lower.key, lower.value = upper.key, upper.value
        lower.parent = parent
        parent.children[self._edge(lower)] = lower
        self.num_nodes -= 1
        if upper.last_access_time > lower.last_access_time:
            lower.last_access_time = upper.last_access_time
            if lower.ticket:
                self.victims.discard(lower)
                self.victims.add(lower)

    def _edge(self, node: Node) -> Edge:
        if node.is_root:
            assert node.space is not None
            return node.space.namespace
        return bytes(node.key[: self.page_bytes])

    # Protecting

    def lock(self, node: Node) -> None:
        """Let a lease end in `node`: protect it and the path above it."""
        self.victims.discard(node)
        above: Node | None = node
        while above is not None:
            count = above.lock_ref
            above.lock_ref = count + 1
            if count:
                self.locked_bytes -= above.depth  # locked already, with all that is above
                break
            above = above.parent
        self.locked_bytes += node.depth

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
        if not node.lock_ref and not node.children:
            self.victims.add(node)
        self._merge_with_only_child(node)

    def unlock_dropped(self, node: Node) -> list[bytearray]:
        """Undo one `lock` of a path whose lower part may be dropped. Returns the values that nobody holds any more."""
        freed: list[bytearray] = []
        above: Node | None = node
        while above is not None and above.space is None:
            above.lock_ref -= 1
            if above.lock_ref:
                return freed
            freed.append(above.value)
            self.locked_bytes -= len(above.value)
            self.cached_bytes -= len(above.value)
            above.parent, above = None, above.parent
        if above is not None:
            self.unlock(above)
        return freed

    # Shrinking

    def evict(self, size: int) -> list[bytearray]:
        """Free `size` bytes of values, coldest leaf first; the last one is trimmed to what is needed.

        `size` is in whole pages and at most what is unlocked.
        """
        freed: list[bytearray] = []
        while size:
            leaf = self.victims.first()
            surplus = len(leaf.value) - size
            if surplus > 0:
                freed.append(leaf.value[surplus:])
                del leaf.key[surplus:], leaf.value[surplus:]
                leaf.depth -= size
                self.cached_bytes -= size
                break
            freed.append(leaf.value)
            size -= len(leaf.value)
            self.victims.discard(leaf)
            self._remove_leaf(leaf)
        return freed

    def drop(self, namespace: Namespace) -> list[bytearray]:
        """Cut a namespace off, with everything below it. Returns the values that no lease holds.

        What is locked stays allocated, out of reach, until its last lease ends.
        """
        freed: list[bytearray] = []
        for root in self.roots.of(namespace):
            barrier = root.parent
            for node in list(_subtree(root)):
                self._detach(node, freed)
            if barrier is not None:
                self._after_loss(barrier)
        return freed

    def _detach(self, node: Node, freed: list[bytearray]) -> None:
        if node.is_root:
            self.roots.uproot(node)
        else:
            self.num_nodes -= 1
            self.num_leaves -= 0 if node.children else 1
        node.space = None
        if not node.lock_ref:
            self.victims.discard(node)
            self.cached_bytes -= len(node.value)
            freed.append(node.value)
            node.parent = None

    def _remove_leaf(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        self.cached_bytes -= len(leaf.value)
        self.num_nodes -= 1
        self.num_leaves -= 1
        leaf.parent = None
        parent.disown(self._edge(leaf))
        # Whoever used the leaf used its parent.
        parent.last_access_time = max(parent.last_access_time, leaf.last_access_time)
        parent.priority = max(parent.priority, leaf.priority)
        self._after_loss(parent)

    def _after_loss(self, node: Node) -> None:
        """Put a node right that has just lost a child."""
        if node.children:
            self._merge_with_only_child(node)
        elif not node.is_root:
            self.num_leaves += 1
            if not node.lock_ref:
                self.victims.add(node)
        else:
            barrier = node.parent
            self.roots.uproot(node)
            if barrier is not None:
                self._after_loss(barrier)


def _subtree(root: Node) -> Iterator[Node]:
    """Every node from `root` down, parents before children."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.children.values())


def _touch(node: Node, now: float, priority: int) -> None:
    """Note who used a node last. It is locked, so its rank is taken again when it becomes a victim."""
    node.last_access_time = now
    if priority:
        node.priority = max(node.priority, priority)
