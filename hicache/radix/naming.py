"""Names of pages along the tree: the ones `keys.page_hashes` gives for the path's key, kept in the nodes they end in.

A page of names may be larger than a page of the tree. It belongs to the node that holds its last token:

    page of names   |. . . .|. . . .|. . . .|. . .        4 tokens; the last three fill none
    nodes           [ a         ][ b              ]       a: 1 name, b: 2 names
"""

from hicache.keys import PAGE_HASH_BYTES, TOKEN_BYTES, first_name, page_name, segment_name
from hicache.radix.node import Node


class PageNames:
    """Computes names when they are first asked for. `seed` says whatever must not meet (see `keys.page_hashes`)."""

    def __init__(self, page_size: int, seed: bytes) -> None:
        self.page_size = page_size
        self.page_bytes = page_size * TOKEN_BYTES
        self.seed = seed
        self._first = first_name(page_size, seed)

    def between(self, node: Node, begin: int, end: int) -> bytes:
        """Return the names, one behind the other, of the pages that end behind `begin` and not behind `end`.

        Both are depths in bytes within the node.
        """
        names = self.of(node)
        above = (node.depth - len(node.key)) // self.page_bytes
        first = (begin // self.page_bytes - above) * PAGE_HASH_BYTES
        last = (end // self.page_bytes - above) * PAGE_HASH_BYTES
        return names[first:last]

    def of(self, node: Node) -> bytes:
        """Return the names, one behind the other, of all pages that end in a node. One that grew keeps those it has."""
        unnamed: list[Node] = []
        above: Node | None = node
        while above is not None and not (above.hash_value and self._is_complete(above)):
            unnamed.append(above)
            above = above.above
        for each in reversed(unnamed):
            self._complete(each)
        assert node.hash_value is not None
        return node.hash_value

    def split(self, upper: Node, lower: Node) -> None:
        """`upper` was cut off the front of `lower`."""
        if lower.hash_value is not None:
            size = self._count(upper) * PAGE_HASH_BYTES
            upper.hash_value, lower.hash_value = lower.hash_value[:size], lower.hash_value[size:]

    def trim(self, node: Node) -> None:
        """The end of `node` was cut off: what grows there again may have other names."""
        if node.hash_value is not None:
            node.hash_value = node.hash_value[: self._count(node) * PAGE_HASH_BYTES]

    def merge(self, upper: Node, lower: Node) -> None:
        """`lower` is about to take over what is in `upper`."""
        if upper.hash_value is not None and lower.hash_value is not None and self._is_complete(upper):
            lower.hash_value = upper.hash_value + lower.hash_value
        else:
            lower.hash_value = None

    def _count(self, node: Node) -> int:
        """How many pages end in a node."""
        return node.depth // self.page_bytes - (node.depth - len(node.key)) // self.page_bytes

    def _is_complete(self, node: Node) -> bool:
        return node.hash_value is not None and len(node.hash_value) == self._count(node) * PAGE_HASH_BYTES

    def _complete(self, node: Node) -> None:
        begin = node.depth - len(node.key)
        wanted = self._count(node)
        names = [node.hash_value or b""]
        count = len(names[0]) // PAGE_HASH_BYTES
        if count < wanted:
            name = names[0][-PAGE_HASH_BYTES:] or self._name_before(node)
            position = (begin // self.page_bytes + count) * self.page_bytes
            packed = _tokens_between(node, position, node.depth)
            for start in range(0, (wanted - count) * self.page_bytes, self.page_bytes):
                name = page_name(name, packed[start : start + self.page_bytes])
                names.append(name)
        node.hash_value = b"".join(names)

    def _name_before(self, node: Node) -> bytes:
        """What the first name of a node chains to: the last one above it, and the node's namespace if that is new.

        Namespaces in which no page ends do not count, as in `PrefixKey.parts`.
        """
        begins_below_root = False
        above = node.parent
        while above is not None and not above.hash_value:
            begins_below_root |= above.is_root
            above = above.parent
        name = self._first if above is None or above.hash_value is None else above.hash_value[-PAGE_HASH_BYTES:]
        if not begins_below_root:
            return name
        assert node.space is not None
        return segment_name(name, node.space.namespace)


def _tokens_between(node: Node, begin: int, end: int) -> bytes:
    """The packed tokens of the path down to `node`, from one depth to another."""
    pieces: list[bytes] = []
    above: Node | None = node
    while above is not None and begin < end:
        start = above.depth - len(above.key)
        pieces.append(bytes(above.key[max(begin - start, 0) : end - start]))
        end = min(end, start)
        above = above.above
    return b"".join(reversed(pieces))
