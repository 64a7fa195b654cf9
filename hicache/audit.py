"""Recomputes from scratch what the cache claims about itself. Reads everything, changes nothing, may be slow."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hicache.errors import InvariantError
from hicache.keys import Int32Array
from hicache.node import NO_CHILDREN, Edge, Node, Space
from hicache.tree import RadixTree


@dataclass(frozen=True, slots=True)
class Holding:
    """What one open lease claims to hold."""

    node: Node | None  # where its lock sits
    depth: int  # tokens from the top down to the end of `node`
    slots: Int32Array  # int32[held], whole pages
    private: Int32Array  # the ones among them that no node refers to
    duplicates: Sequence[tuple[int, int]]  # token ranges above `depth` whose slots are private
    expelled: bool  # its namespace was dropped


def audit(tree: RadixTree, free: Int32Array, num_slots: int, holdings: Sequence[Holding]) -> None:
    """Raise InvariantError with the first thing that does not hold."""
    _require(not NO_CHILDREN, "the children that all leaves share are not empty")
    reachable = _reachable(tree)
    orphans = _orphans(holdings)
    for node in reachable:
        _check_node(tree, node)
    _check_spaces(tree, reachable)
    _check_locks([*reachable, *orphans], holdings)
    _check_victims(tree, reachable, orphans)
    _check_counts(tree, reachable, orphans)
    _check_leases(holdings)
    _check_slots([*reachable, *orphans], free, num_slots, holdings)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)


def _reachable(tree: RadixTree) -> list[Node]:
    found: dict[Node, None] = {}
    pending = list(tree.roots.tops.values())
    while pending:
        node = pending.pop()
        _require(node not in found, "a node is reached in two ways")
        found[node] = None
        pending.extend(node.children.values())
    return list(found)


def _path(node: Node | None) -> list[Node]:
    """From `node` up to the top."""
    path: dict[Node, None] = {}
    while node is not None:
        _require(node not in path, "a node lies above itself")
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
    _require(node.space is not None, "a reachable node has no namespace")
    _require(len(node.key) == len(node.value), f"a node has {len(node.key)} bytes of key, {len(node.value)} of value")
    _require(len(node.key) % tree.page_bytes == 0, f"a node of {node.num_tokens} tokens has no whole pages")
    _require(not node.is_root or bool(node.children), "a root has no children")
    _require(bool(node.children) or node.children is NO_CHILDREN, "a leaf keeps an empty dict")
    above = 0 if node.parent is None else node.parent.depth
    _require(node.depth == above + len(node.key), f"a node at depth {node.depth} ends {len(node.key)} below {above}")
    for edge, child in node.children.items():
        _require(child.parent is node, "a child names another parent")
        _require(edge == _edge(child, tree.page_bytes), "a child hangs by an edge that is not its own")
        if not child.is_root:
            _require(child.space is node.space, "a child without a barrier lies in another namespace than its parent")


def _check_spaces(tree: RadixTree, reachable: Sequence[Node]) -> None:
    roots: dict[Space, set[Node]] = {}
    for node in reachable:
        if node.is_root and node.space is not None:
            roots.setdefault(node.space, set()).add(node)
    _require(set(tree.roots.spaces.values()) == set(roots), "the namespaces listed are not those of the roots in reach")
    for space, found in roots.items():
        _require(tree.roots.spaces.get(space.namespace) is space, "a namespace is listed under another name")
        _require(space.roots == found, "a namespace does not know its roots")
    for namespace, top in tree.roots.tops.items():
        _require(top.parent is None, "a root at the top has a parent")
        _require(top.is_root, "a node at the top is no root")
        _require(top.space is not None and top.space.namespace == namespace, "a root at the top is listed wrongly")


def _check_locks(nodes: Sequence[Node], holdings: Sequence[Holding]) -> None:
    expected = Counter(holding.node for holding in holdings)
    for node in nodes:
        if node.lock_ref and node.parent is not None:
            expected[node.parent] += 1
    for node in nodes:
        _require(
            node.lock_ref == expected[node],
            f"a node of {node.num_tokens} tokens has lock_ref {node.lock_ref}, leases and children: {expected[node]}",
        )
    for node in nodes:
        _require(node.space is not None or node.lock_ref > 0, "a dropped node outlives its leases")


def _check_victims(tree: RadixTree, reachable: Sequence[Node], orphans: Sequence[Node]) -> None:
    expected = {node for node in reachable if not node.children and not node.lock_ref}
    entries = tree.victims.entries()
    _require(len(entries) == len(tree.victims), f"{len(entries)} victims are entered, {len(tree.victims)} are counted")
    _require({node for _, _, node in entries} == expected, "the victims are not the unlocked leaves")
    for node in (*reachable, *orphans):
        _require(bool(node.ticket) == (node in expected), "a ticket names no victim")
    for rank, _, node in entries:
        _require(rank == tree.policy.rank(node), f"a victim is entered at rank {rank}, it has {tree.policy.rank(node)}")
    if entries:
        coldest = min(entries, key=lambda entry: entry[:2])
        _require(tree.victims.first() is coldest[2], "the next victim is not the first of its order")


def _check_counts(tree: RadixTree, reachable: Sequence[Node], orphans: Sequence[Node]) -> None:
    held = [*reachable, *orphans]
    found = {
        "cached_bytes": sum(len(node.value) for node in held),
        "locked_bytes": sum(len(node.value) for node in held if node.lock_ref),
        "num_nodes": sum(not node.is_root for node in reachable),
        "num_leaves": sum(not node.children for node in reachable),
    }
    for name, value in found.items():
        _require(getattr(tree, name) == value, f"{name} is {getattr(tree, name)}, the nodes make {value}")


def _check_leases(holdings: Sequence[Holding]) -> None:
    for holding in holdings:
        path = _path(holding.node)
        orphaned = any(node.space is None for node in path)
        _require(holding.expelled or not orphaned, "a lease does not know that its namespace was dropped")
        value = np.frombuffer(b"".join(node.value for node in reversed(path)), dtype=np.int32)
        _require(len(value) == holding.depth, f"a lease at depth {holding.depth} is locked {len(value)} tokens deep")
        own = np.ones(holding.depth, dtype=bool)
        for first, last in holding.duplicates:
            own[first:last] = False
        differs = np.flatnonzero((value != holding.slots[: holding.depth]) & own)
        _require(not len(differs), "a lease reads slots that its path does not have")


def _check_slots(nodes: Sequence[Node], free: Int32Array, num_slots: int, holdings: Sequence[Holding]) -> None:
    cached = np.frombuffer(b"".join(node.value for node in nodes), dtype=np.int32)
    private = np.concatenate([np.empty(0, dtype=np.int32), *(holding.private for holding in holdings)])
    owned = np.concatenate([free, cached, private])
    _require(
        len(owned) == num_slots,
        f"{len(free)} free + {len(cached)} cached + {len(private)} private slots are not {num_slots}",
    )
    _require(bool((np.sort(owned) == np.arange(num_slots)).all()), "a slot has two owners, and another one none")
