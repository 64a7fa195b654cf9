"""The radix tree: finds prefixes and grows. Knows tokens and slot ids as packed bytes.

Knows nothing of free slots, leases, copies or tensors. How nodes are split, merged and locked is told in `shape`, how
they leave the tree and its tiers in `removal`. Lengths and offsets are in bytes throughout, TOKEN_BYTES for each token.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hicache.keys import Namespace, Part
from hicache.radix.node import NO_SLOTS, Node
from hicache.radix.packed import shared_bytes
from hicache.radix.shape import TreeShape
from hicache.radix.shares import COMMON, Owner


class Insertion(NamedTuple):
    """Where an inserted key ends, how deep that is, and the first and last byte of what had been there already."""

    node: Node | None
    depth: int
    duplicates: list[tuple[int, int]]


class RadixTree(TreeShape):
    """Prefixes by namespace, whose invariants are those of its shape."""

    # Finding

    def match(
        self, parts: Sequence[Part], limit: int, now: float, priority: int
    ) -> tuple[Node | None, list[bytearray]]:
        """Find and lock the longest prefix on the device of at most `limit` bytes, which are whole pages.

        Returns its last node, for `unlock`, and the values along its path; the node in whose middle it ends is split.
        """
        values: list[bytearray] = []
        last: Node | None = None
        page_bytes = self.page_bytes
        tops = self.roots.tops
        start = 0
        for namespace, packed, size in parts:
            node = tops.get(namespace) if last is None else last.children.get(namespace)
            if node is None:
                break
            stop = min(size, limit - start)
            offset = 0
            begins_with = packed.startswith
            while offset < stop:
                child = node.recent
                if child is None or not begins_with(child.key, offset):
                    child = node.children.get(packed[offset : offset + page_bytes])
                    if child is None or not child.value:
                        break
                    if not begins_with(child.key, offset):
                        shared = shared_bytes(packed, offset, stop, child.key, page_bytes)
                        if not shared:
                            break
                        child = self.split(child, shared)
                    node.recent = child
                values.append(child.value)
                node = child
                offset = child.depth - start
            if offset > stop:
                node = self.split(node, len(node.key) - (offset - stop))
                values[-1] = node.value
                offset = stop
            if offset:
                last = node
            if offset < size:
                break
            start += size
        if last is not None:
            last.hit_count += 1
            self.lock(last)
            last.touch(now, priority)
        return last, values

    def match_on_host(
        self, parts: Sequence[Part], held: Node | None, limit: int, now: float, priority: int
    ) -> Node | None:
        """Find how the prefix goes on where the device has no more of it, behind the node that `match` returned.

        Returns the last node of it that the host has all of, or None; the node in whose middle it ends is split.
        """
        last: Node | None = None
        node = held
        depth = 0 if held is None else held.depth
        start = 0
        for namespace, packed, size in parts:
            if depth >= start + size:
                start += size
                continue
            if depth == start:
                node = self.roots.below(node, namespace)
            stop = min(size, limit - start)
            while node is not None and depth - start < stop:
                offset = depth - start
                child = node.children.get(packed[offset : offset + self.page_bytes])
                if child is None or not child.mirrored:
                    node = None
                    break
                shared = shared_bytes(packed, offset, stop, child.key, self.page_bytes)
                if not shared:
                    node = None
                    break
                node = last = child if shared == len(child.key) else self.split(child, shared)
                depth = node.depth
            if node is None or depth < start + size:
                break
            start += size
        if last is not None:
            last.hit_count += 1
            last.touch(now, priority)
            self.queues.replace(last)
        return last

    def match_length(self, parts: Sequence[Part], limit: int) -> tuple[int, int, bool]:
        """Return how many bytes `match` and `match_on_host` would find, and whether a load back of any of them is under
        way. Changes nothing.
        """
        on_device = found = 0
        loading = False
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
                child = node.recent
                if child is not None and begins_with(child.key, offset):
                    offset = child.depth - start
                else:
                    child = node.children.get(packed[offset : offset + page_bytes])
                    if child is None or not (child.value or child.mirrored):
                        break
                    offset += shared_bytes(packed, offset, stop, child.key, page_bytes)
                if child.value:
                    on_device = start + offset
                elif child.holders:
                    loading = loading or any(holder.loads for holder in child.holders)
                if start + offset < child.depth:
                    return on_device, start + offset - on_device, loading
                node = last = child
            if offset > stop:  # the last node, on the device, goes on behind what may be hit
                offset = stop
                on_device = start + stop
            found = start + offset
            if offset < size:
                break
            start += size
        return on_device, found - on_device, loading

    # Growing

    def insert(
        self,
        held: Node | None,
        depth: int,
        parts: Sequence[Part],
        value: memoryview,
        now: float,
        priority: int,
        owner: Owner | None = None,
    ) -> Insertion:
        """Add a key below `held`, the locked node at `depth` where its lease ends so far, and move the lock to its end.

        `value` holds the slots of what lies behind `depth`; nodes that only the host has take theirs from it. A
        namespace that is new is public, but for the owner's. Costs O(new part): nothing above `held` is looked at.
        """
        node = held
        duplicates: list[tuple[int, int]] = []
        start, position = 0, depth
        for namespace, packed, size in parts:
            offset = position - start
            if offset < size:
                if not offset:
                    node = self.roots.below(node, namespace) or self._new_root(node, namespace, owner)
                assert node is not None
                here = value[start + offset - depth : start + size - depth]
                node, known = self._descend(node, packed, offset, size, here, duplicates, start)
                if known < size:
                    node = self._grow(node, held, packed[known:size], here[known - offset :], now, priority)
                position = start + size
            start += size
        if node is not None:
            if node is not held:
                self.lock(node)
                if held is not None:
                    self.unlock(held)
            node.touch(now, priority)
        return Insertion(node, position, duplicates)

    def _descend(
        self,
        node: Node,
        packed: bytes,
        offset: int,
        size: int,
        value: memoryview,
        duplicates: list[tuple[int, int]],
        start: int,
    ) -> tuple[Node, int]:
        """Follow what is there already, splitting where the key leaves it. Returns the node reached and its offset.

        What is on the device already is entered among the duplicates, in bytes of the whole key, of which this part
        begins at `start`.
        """
        first = offset
        while offset < size:
            child = node.children.get(packed[offset : offset + self.page_bytes])
            if child is None:
                break
            shared = shared_bytes(packed, offset, size, child.key, self.page_bytes)
            node = child if shared == len(child.key) else self.split(child, shared)
            if node.value:
                if duplicates and duplicates[-1][1] == start + offset:
                    duplicates[-1] = (duplicates[-1][0], start + offset + shared)
                else:
                    duplicates.append((start + offset, start + offset + shared))
            else:
                self._bring_to_device(node, value[offset - first : offset - first + shared])
            offset += shared
        return node, offset

    def attach_on_host(
        self, parts: Sequence[Part], begin: int, host_value: memoryview, now: float, owner: Owner | None
    ) -> int:
        """Add what storage brought: the slots in `host_value` hold the bytes from `begin` to the end of the key.

        Returns how many bytes at their front are not needed: they were there already, or what lies before them is not.
        """
        end = begin + len(host_value)
        node, depth = self.walk(parts, end)
        if depth < begin or depth >= end:
            return len(host_value)
        unneeded = depth - begin
        start = 0
        for namespace, packed, size in parts:
            stop = min(start + size, end)
            if depth < stop:
                if depth == start:
                    node = self.roots.below(node, namespace) or self._new_root(node, namespace, owner)
                assert node is not None
                node = self._attach(node, packed[depth - start : stop - start], now)
                node.host_value = bytearray(host_value[depth - begin : stop - begin])
                assert node.space is not None
                node.space.count_on_host(len(node.key))
                self.watcher.stored(node, depth, "host")
                self.queues.place(node)
                if node.above is not None:
                    self.queues.replace(node.above)  # no leaf of the host any more
                depth = stop
            start += size
        return unneeded

    def walk(self, parts: Sequence[Part], limit: int) -> tuple[Node | None, int]:
        """Follow a key through all tiers, splitting where it leaves. Returns the node reached and its depth."""
        node: Node | None = None
        start = depth = 0
        for namespace, packed, size in parts:
            below = self.roots.below(node, namespace)
            stop = min(size, limit - start)
            while below is not None and depth - start < stop:
                offset = depth - start
                child = below.children.get(packed[offset : offset + self.page_bytes])
                if child is None:
                    break
                shared = shared_bytes(packed, offset, stop, child.key, self.page_bytes)
                node = below = child if shared == len(child.key) else self.split(child, shared)
                depth += shared
            if depth < start + size:
                break
            start += size
        return node, depth

    def _grow(self, node: Node, held: Node | None, key: bytes, value: memoryview, now: float, priority: int) -> Node:
        """Attach a run of new tokens behind `node`, in place if it is a leaf that nobody else's lease ends in.

        Returns the node that ends with it, which is in no queue: `insert` is about to lock it.
        """
        leaf = node.key and not node.children and node not in self.queues.fixed
        if leaf and node.lock_ref == (node is held) and not node.host_value:
            self.queues.withdraw(node)
            begin = node.depth
            node.key += key
            node.value += value
            node.depth += len(key)
            node.stored_time = now
            self.count_on_device(node, len(key))
            if node.lock_ref:
                self._count_locked(node, len(key))
            self.watcher.stored(node, begin, "device")
            return node
        child = self._attach(node, key, now, priority)
        child.value = bytearray(value)
        self.count_on_device(child, len(key))
        self.queues.child_arrived(child.above)
        self.watcher.stored(child, child.depth - len(key), "device")
        return child

    def _attach(self, node: Node, key: bytes, now: float, priority: int = 0) -> Node:
        """Hang a new leaf below `node`, which no tier holds yet."""
        child = Node(bytearray(key), NO_SLOTS, node, node.space, now, priority)
        self.num_nodes += 1
        self.num_leaves += 1 if node.is_root or node.children else 0
        node.adopt(key[: self.page_bytes], child)
        return child

    def _bring_to_device(self, node: Node, value: memoryview) -> None:
        """Give a node that only the host has its device slots; its path is on the device already."""
        self.queues.withdraw(node)
        node.value = bytearray(value)
        self.count_on_device(node, len(node.value))
        self.queues.child_arrived(node.above)
        self.queues.place(node)
        self.watcher.stored(node, node.depth - len(node.key), "device")

    def _new_root(self, barrier: Node | None, namespace: Namespace, owner: Owner | None) -> Node:
        if barrier is not None:
            self.num_leaves -= 0 if barrier.children else 1
        # A key's own namespace is its last one, however little of the key is there yet.
        tenant = owner.tenant if owner is not None and owner.namespace == namespace else COMMON
        return self.roots.plant(barrier, namespace, tenant, self.shares.of(tenant))
