"""Waiting sequences by the tokens they begin with: who shares how much with whom. Knows nothing of the cache.

weight 3   [system prompt]──┬──[question a]            each node: a run of tokens that all below it share
                            └──[question b]──[more]
"""

from collections.abc import Callable, Iterator

from hicache.keys import TOKEN_BYTES, Namespace
from hicache.radix.packed import shared_bytes
from worker.engine.sequence import Sequence


class _Node:
    """A run of tokens. `weight` sequences end here or below; `members`, by order, end here."""

    __slots__ = ("children", "depth", "edge", "members", "parent", "weight")

    def __init__(self, edge: bytearray, parent: "_Node | None", depth: int) -> None:
        self.edge = edge
        self.parent = parent
        self.depth = depth  # in bytes, where it ends
        self.children: dict[bytes, _Node] = {}  # by their first token
        self.members: dict[int, Sequence] = {}
        self.weight = 0


class PrefixTree:
    """The waiting sequences of one tenant. Invariant: each node but a root has members or at least two children."""

    def __init__(self) -> None:
        self._roots: dict[tuple[Namespace, ...], _Node] = {}
        self._ends: dict[int, _Node] = {}  # by order of the sequence

    def add(self, sequence: Sequence) -> None:
        packed = packed_key(sequence)
        node = self._roots.setdefault(sequence.key.namespaces, _Node(bytearray(), None, 0))
        while node.depth < len(packed):
            child = node.children.get(packed[node.depth : node.depth + TOKEN_BYTES])
            if child is None:
                child = _Node(bytearray(packed[node.depth :]), node, len(packed))
                node.children[bytes(child.edge[:TOKEN_BYTES])] = child
            else:
                shared = shared_bytes(packed, node.depth, len(packed), child.edge, TOKEN_BYTES)
                if shared < len(child.edge):
                    child = _split(child, shared)
            node = child
        node.members[sequence.order] = sequence
        self._ends[sequence.order] = node
        for above in _path(node):
            above.weight += 1

    def remove(self, sequence: Sequence) -> None:
        node = self._ends.pop(sequence.order)
        del node.members[sequence.order]
        for above in _path(node):
            above.weight -= 1
        self._tidy(node)

    def depth_first(self, trail: bytes) -> Iterator[Sequence]:
        """Yield all: subtree after subtree, the heaviest first, but before it the one that `trail` leads into.

        Those may be removed meanwhile that were yielded already.
        """
        for root in sorted(self._roots.values(), key=_lightness):
            pending = [(root, True)]
            while pending:
                node, on_trail = pending.pop()
                yield from tuple(node.members.values())
                begun = trail[node.depth : node.depth + TOKEN_BYTES] if on_trail else b""
                children = sorted(node.children.items(), key=lambda item: (item[0] != begun, -item[1].weight))
                pending.extend((child, first == begun) for first, child in reversed(children))

    def gained(self, sequence: Sequence, num_tokens: int, gains: Callable[[Sequence, int], bool]) -> list[Sequence]:
        """Return who gains if the cache has the first `num_tokens` tokens of `sequence`'s key.

        `gains` tells whether a sequence does if that many of its own first tokens are among them. It is asked about one
        for all below a node: costs O(those returned) and the nodes on the way.
        """
        node = self._roots.get(sequence.key.namespaces)
        packed = packed_key(sequence)
        end = min(num_tokens * TOKEN_BYTES, len(packed))
        while node is not None and node.weight:
            offset = node.depth
            child = node.children.get(packed[offset : offset + TOKEN_BYTES]) if offset < end else None
            if child is None:
                return []
            shared = offset + shared_bytes(packed, offset, end, child.edge, TOKEN_BYTES)
            if gains(_one_below(child), shared // TOKEN_BYTES):
                return list(_all_below(child))
            if shared < child.depth:
                return []
            node = child
        return []

    def check(self) -> None:
        """Verify the invariants; raises AssertionError."""
        for root in self._roots.values():
            assert root.weight, "a root that nobody needs"
            for node in _nodes_below(root):
                below = sum(child.weight for child in node.children.values())
                assert node.weight == len(node.members) + below, "a weight that doesn't add up"
                assert node is root or node.members or len(node.children) > 1, "a node that nobody needs"

    def _tidy(self, node: _Node) -> None:
        """Take out nodes that lead nowhere, and join the one that is left with its only child."""
        while node.parent is not None and not node.weight:
            parent = node.parent
            del parent.children[bytes(node.edge[:TOKEN_BYTES])]
            node = parent
        if node.parent is None:
            if not node.weight:
                self._roots = {names: root for names, root in self._roots.items() if root is not node}
        elif not node.members and len(node.children) == 1:
            (child,) = node.children.values()
            child.edge = node.edge + child.edge
            child.parent = node.parent
            node.parent.children[bytes(child.edge[:TOKEN_BYTES])] = child


def packed_key(sequence: Sequence) -> bytes:
    """Return the packed tokens of all segments, one behind the other."""
    segments = sequence.key.segments
    return segments[0].packed if len(segments) == 1 else b"".join(segment.packed for segment in segments)


def _split(lower: _Node, size: int) -> _Node:
    parent = lower.parent
    assert parent is not None
    upper = _Node(lower.edge[:size], parent, parent.depth + size)
    upper.weight = lower.weight
    parent.children[bytes(upper.edge[:TOKEN_BYTES])] = upper
    lower.edge = lower.edge[size:]
    lower.parent = upper
    upper.children[bytes(lower.edge[:TOKEN_BYTES])] = lower
    return upper


def _path(node: _Node) -> Iterator[_Node]:
    above: _Node | None = node
    while above is not None:
        yield above
        above = above.parent


def _nodes_below(node: _Node) -> Iterator[_Node]:
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.children.values())


def _all_below(node: _Node) -> Iterator[Sequence]:
    for each in _nodes_below(node):
        yield from each.members.values()


def _one_below(node: _Node) -> Sequence:
    """Return one of those that go on furthest from `node`."""
    while node.children:
        node = next(iter(node.children.values()))
    return next(iter(node.members.values()))


def _lightness(node: _Node) -> int:
    return -node.weight
