"""Recomputes from scratch what the cache claims about itself. Reads everything, changes nothing, may be slow."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hicache.keys import Int32Array
from hicache.radix.audit_queues import audit_queues, reach, require
from hicache.radix.node import NO_CHILDREN, NO_SLOTS, Edge, Node
from hicache.radix.tree import RadixTree


@dataclass(frozen=True, slots=True)
class Holding:
    """What one open lease claims to hold."""

    node: Node | None  # where its lock sits
    depth: int  # tokens from the top down to the end of `node`
    slots: Int32Array  # int32[held], whole pages
    private: Int32Array  # the ones among them that no node refers to
    duplicates: Sequence[tuple[int, int]]  # token ranges above `depth` whose slots are private
    expelled: bool  # its namespace was dropped


def audit(
    tree: RadixTree, limbo: Sequence[Node], free: Int32Array, num_slots: int, holdings: Sequence[Holding]
) -> None:
    """Raise InvariantError with the first thing that does not hold. `limbo` tops what was dropped and not freed yet."""
    require(not NO_CHILDREN, "the children that all leaves share are not empty")
    require(not NO_SLOTS, "the slots of all nodes that a tier does not hold are not empty")
    reachable = reach(tree.roots.tops.values())
    dropped = reach(limbo)
    require(not set(reachable) & set(dropped), "a dropped node is in reach")
    require(bool(limbo) or not tree.queues.fixed, "a node keeps its place for nothing")
    for top in limbo:
        require(
            top.parent is None or top.parent.space is None or top.parent in tree.queues.fixed, "a path may move away"
        )
    orphans = _orphans(holdings)
    alive = [*reachable, *dropped]
    for node in alive:
        _check_node(tree, node)
    _check_spaces(tree, reachable, dropped)
    _check_locks([*alive, *orphans], holdings)
    _check_counts(tree, alive, orphans)
    _check_leases(holdings)
    _check_slots([*alive, *orphans], free, num_slots, holdings)
    audit_queues(tree, alive)
    for node in alive:
        _check_recent(tree, node)
    for node in orphans:
        require(node.queue is None, "a dropped node waits for its eviction")


def _path(node: Node | None) -> list[Node]:
    """From `node` up to the top."""
    path: dict[Node, None] = {}
    while node is not None:
        require(node not in path, "a node lies above itself")
        path[node] = None
        node = node.parent
    return list(path)


def _orphans(holdings: Sequence[Holding]) -> list[Node]:
    """Nodes of dropped namespaces: only leases still lead to them."""
    return list({node: None for holding in holdings for node in _path(holding.node) if node.space is None})


def _edge(node: Node, page_bytes: int) -> Edge | None:
    if node.key:
        return bytes(node.key[:page_bytes])
    return None if node.space is None else node.space.namespace


def _check_node(tree: RadixTree, node: Node) -> None:
    require(node.space is not None, "a reachable node has no namespace")
    for name, value in (("value", node.value), ("host_value", node.host_value)):
        require(len(value) in (0, len(node.key)), f"a node has {len(node.key)} bytes of key, {len(value)} of {name}")
    require(node.is_root or bool(node.value) or node.mirrored, "a node lies in no tier")
    above = node.above
    require(above is None or bool(above.value) or not node.value, "a node is on the device, and its parent is not")
    require(len(node.key) % tree.page_bytes == 0, f"a node of {node.num_tokens} tokens has no whole pages")
    require(not node.is_root or bool(node.children), "a root has no children")
    require(bool(node.children) or node.children is NO_CHILDREN, "a leaf keeps an empty dict")
    depth = 0 if node.parent is None else node.parent.depth
    require(node.depth == depth + len(node.key), f"a node at depth {node.depth} ends {len(node.key)} below {depth}")
    for edge, child in node.children.items():
        require(child.parent is node, "a child names another parent")
        require(edge == _edge(child, tree.page_bytes), "a child hangs by an edge that is not its own")
        if not child.is_root:
            require(child.space is node.space, "a child without a barrier lies in another namespace than its parent")


def _check_recent(tree: RadixTree, node: Node) -> None:
    recent = node.recent
    if recent is None:
        return
    known = not recent.is_root and node.children.get(tree.edge(recent)) is recent
    require(known, "a node expects the next match at what is no child of its own")
    require(bool(recent.value), "a node expects the next match at what is not on the device")


def _check_spaces(tree: RadixTree, reachable: Sequence[Node], dropped: Sequence[Node]) -> None:
    in_reach = {node for node in reachable if node.is_root}
    listed = {root for space in tree.roots.spaces.values() for root in space.roots}
    require(in_reach <= listed, "a root in reach is not listed")
    require(listed <= in_reach | set(dropped), "a root is listed that does not exist")
    for namespace, space in tree.roots.spaces.items():
        require(space.namespace == namespace, "a namespace is listed under another name")
        require(bool(space.roots), "a namespace is listed without a root")
        require(all(root.space is space for root in space.roots), "a namespace does not know its roots")
    for space in {node.space for node in (*reachable, *dropped) if node.space is not None}:
        require(
            space.account is tree.shares.of(space.tenant), "a namespace counts for another account than its tenant's"
        )
    tree.shares.check()
    for namespace, top in tree.roots.tops.items():
        require(top.parent is None, "a root at the top has a parent")
        require(top.is_root, "a node at the top is no root")
        require(top.space is not None and top.space.namespace == namespace, "a root at the top is listed wrongly")


def _check_locks(nodes: Sequence[Node], holdings: Sequence[Holding]) -> None:
    expected = Counter(holding.node for holding in holdings)
    for node in nodes:
        if node.lock_ref and node.parent is not None:
            expected[node.parent] += 1
    for node in nodes:
        require(
            node.lock_ref == expected[node],
            f"a node of {node.num_tokens} tokens has lock_ref {node.lock_ref}, leases and children: {expected[node]}",
        )


def _check_counts(tree: RadixTree, reachable: Sequence[Node], orphans: Sequence[Node]) -> None:
    held = [*reachable, *orphans]
    found = {
        "cached_bytes": sum(len(node.value) for node in held),
        "locked_bytes": sum(len(node.value) for node in held if node.lock_ref),
        "num_nodes": sum(not node.is_root for node in reachable),
        "num_leaves": sum(not node.children for node in reachable),
    }
    for name, value in found.items():
        require(getattr(tree, name) == value, f"{name} is {getattr(tree, name)}, the nodes make {value}")


def _check_leases(holdings: Sequence[Holding]) -> None:
    for holding in holdings:
        path = _path(holding.node)
        orphaned = any(node.space is None for node in path)
        require(holding.expelled or not orphaned, "a lease does not know that its namespace was dropped")
        value = np.frombuffer(b"".join(node.value for node in reversed(path)), dtype=np.int32)
        require(len(value) == holding.depth, f"a lease at depth {holding.depth} is locked {len(value)} tokens deep")
        own = np.ones(holding.depth, dtype=bool)
        for first, last in holding.duplicates:
            own[first:last] = False
        differs = np.flatnonzero((value != holding.slots[: holding.depth]) & own)
        require(not len(differs), "a lease reads slots that its path does not have")


def _check_slots(nodes: Sequence[Node], free: Int32Array, num_slots: int, holdings: Sequence[Holding]) -> None:
    cached = np.frombuffer(b"".join(node.value for node in nodes), dtype=np.int32)
    private = np.concatenate([np.empty(0, dtype=np.int32), *(holding.private for holding in holdings)])
    owned = np.concatenate([free, cached, private])
    require(
        len(owned) == num_slots,
        f"{len(free)} free + {len(cached)} cached + {len(private)} private slots are not {num_slots}",
    )
    require(bool((np.sort(owned) == np.arange(num_slots)).all()), "a slot has two owners, and another one none")
