"""Pages on their way from the host to storage: those that are whole on the host, under the node they end in.

A page is read from host slots that the save holds. One of which a piece is on the device alone waits for that piece's
copy, which is asked for.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np

from hicache.keys import PAGE_HASH_BYTES, Int32Array, Namespace
from hicache.pages import KnownPages, PagePool, group_of
from hicache.radix.naming import PageNames
from hicache.radix.node import Edge, Node
from hicache.radix.removal import Removal
from hicache.radix.tree import RadixTree
from hicache.stats import Durations
from hicache.storage.io import IoState, IoTicket, PageIo
from hicache.storage.store import PageName

_INCOMPLETE = 4_096  # nodes whose copy is waited for


class Save:
    """Pages on their way to storage. Holds the host slots of its nodes."""

    loads = False

    def __init__(self, nodes: list[Node], num_tokens: int, names: list[PageName], spaces: list[Namespace]) -> None:
        self.nodes = nodes
        self.num_tokens = num_tokens
        self.names = names
        self.spaces = spaces  # of each name
        self.ticket: IoTicket


class Saves:
    """Starts saves, and follows them to their end."""

    def __init__(
        self,
        tree: RadixTree,
        removal: Removal,
        io: PageIo,
        pool: PagePool,
        names: PageNames,
        known: KnownPages,
        max_tokens: int,
    ) -> None:
        """`max_tokens` may wait to be saved at a time, and cannot leave the host meanwhile."""
        self._tree = tree
        self._removal = removal
        self._io = io
        self._pool = pool
        self._names = names
        self._known = known
        self._max_tokens = max_tokens
        self._saves: list[Save] = []
        # By the nodes that they lack on the host: the ways below these to pages that are not whole there.
        self._incomplete: OrderedDict[Node, dict[tuple[Edge, ...], None]] = OrderedDict()
        self._asked_for: OrderedDict[Node, None] = OrderedDict()
        self._saving_tokens = 0
        self.saved_pages = self.failed = self.skipped_pages = 0
        self.durations = Durations()
        self.on_saved: Callable[[Namespace, bytes], None] = lambda _namespace, _packed: None

    def __len__(self) -> int:
        return len(self._saves)

    @property
    def ghosts(self) -> list[Node]:
        """Nodes outside of the tree whose host slots are still read."""
        return [node for save in self._saves for node in save.nodes if node.space is None]

    def save(self, nodes: Sequence[Node]) -> list[Node]:
        """Save the pages that these nodes complete on the host. Returns nodes above them which must come to the host
        first, because their pages are missing in storage.
        """
        names: list[PageName] = []
        spaces: list[Namespace] = []
        pages: list[Int32Array] = []
        held: dict[Node, None] = {}
        wanted: dict[Node, None] = {}
        for node in self._completed_by(nodes):
            if not self._in_reach(node):
                continue
            for above in _above(node):
                if not above.host_value and not self._knows(above):
                    wanted[above] = None
            for name, path in self._pages_of(node):
                if name.page in self._known:
                    continue
                missing = [piece for piece, _, _ in path if not piece.mirrored]
                if missing:
                    wanted.update(dict.fromkeys(missing))
                    self._wait([piece for piece, _, _ in path])
                    continue
                self._known.add(name.page)
                names.append(name)
                spaces.append(_namespace(node))
                pages.append(_slots_of(path))
                held.update(dict.fromkeys(piece for piece, _, _ in path))
        for node in held:
            self._asked_for.pop(node, None)
        if names:
            self._start_save(Save(list(held), len(names) * self._names.page_size, names, spaces), pages)
        return [node for node in wanted if self._ask_for(node)]

    def _ask_for(self, node: Node) -> bool:
        """Whether to ask for the copy of a node. Once, until a page of it is saved: on a small host its copy, and the
        others that the page needs, might drive each other out for ever.
        """
        if node in self._asked_for:
            return False
        self._asked_for[node] = None
        if len(self._asked_for) > _INCOMPLETE:
            self._asked_for.popitem(last=False)
        return True

    def _in_reach(self, node: Node) -> bool:
        """Whether the namespace of a node lives on: storage has been told already to remove what was dropped."""
        space = node.space
        return space is not None and self._tree.roots.spaces.get(space.namespace) is space

    def _wait(self, path: Sequence[Node]) -> None:
        """Look at a page again when a piece of its path that is not on the host has come there."""
        for above, below in pairwise(path):
            if not above.mirrored:
                root = below.parent
                assert root is not None
                begins = self._tree.edge(below)
                way = (begins,) if root is above else (self._tree.edge(root), begins)
                self._incomplete.setdefault(above, {})[way] = None
        while len(self._incomplete) > _INCOMPLETE:
            self._incomplete.popitem(last=False)

    def _completed_by(self, nodes: Sequence[Node]) -> list[Node]:
        """These nodes, and those in which pages end that only lacked them."""
        completed = dict.fromkeys(nodes)
        page_bytes = self._names.page_bytes
        for node in nodes:
            reach = -(-node.depth // page_bytes) * page_bytes  # where the page ends that goes on below
            pending = [self._follow(node, way) for way in self._incomplete.pop(node, ())]
            while pending:
                below = pending.pop()
                if below is None:
                    continue
                completed[below] = None
                if below.depth < reach:
                    pending.extend(below.children.values())
        return [node for node in completed if node.key]

    def _follow(self, node: Node, way: tuple[Edge, ...]) -> Node | None:
        """What hangs there now: since somebody waited, it may have been split, merged or lost."""
        below: Node | None = node
        for edge in way:
            below = None if below is None else below.children.get(edge)
        return below

    def _start_save(self, save: Save, pages: list[Int32Array]) -> None:
        if self._saving_tokens + save.num_tokens > self._max_tokens and self._saves:
            self.skipped_pages += len(pages)
            self._known.discard(save.names)
            return
        for node in save.nodes:
            self._removal.hold(node, save)
        self._saving_tokens += save.num_tokens
        self._saves.append(save)
        save.ticket = self._io.save(save.names, lambda index: self._pool.read_page(pages[index]))

    def _pages_of(self, node: Node) -> Iterator[tuple[PageName, list[tuple[Node, int, int]]]]:
        """Every page that ends in `node`, with the pieces of nodes that it consists of: (node, begin, end), in bytes of
        depth.
        """
        page_bytes = self._names.page_bytes
        group = self._group(node)
        begin = node.depth - len(node.key)
        names = self._names.between(node, begin, node.depth)
        start = begin // page_bytes * page_bytes
        for at in range(0, len(names), PAGE_HASH_BYTES):
            yield PageName(group, names[at : at + PAGE_HASH_BYTES]), _path(node, start, start + page_bytes)
            start += page_bytes

    def _knows(self, node: Node) -> bool:
        """Whether all pages that end in a node are known to be in storage."""
        names = self._names.between(node, node.depth - len(node.key), node.depth)
        return all(names[at : at + PAGE_HASH_BYTES] in self._known for at in range(0, len(names), PAGE_HASH_BYTES))

    def _group(self, node: Node) -> bytes:
        return group_of(_namespace(node), self._names.seed)

    def cancel(self, group: bytes) -> None:
        """Nothing of a group is to be saved any more."""
        for save in self._saves:
            if any(name.group == group for name in save.names):
                save.ticket.cancel()

    def poll(self) -> None:
        """Take note of what has ended."""
        for save in [save for save in self._saves if not save.ticket.pending]:
            self._ended(save)

    def _ended(self, save: Save) -> None:
        self._saves.remove(save)
        self._saving_tokens -= save.num_tokens
        if save.ticket.state is IoState.DONE or save.ticket.seconds:
            self.durations.add(save.ticket.seconds)
        if save.ticket.state is IoState.DONE:
            self.saved_pages += save.ticket.pages
            self._tell_saved(save)
        else:
            self.failed += 1
            self._known.discard(save.names)
        for node in save.nodes:
            self._removal.let_go(node, save)
            if node.space is not None:
                self._tree.merge_with_only_child(node)

    def _tell_saved(self, save: Save) -> None:
        """Where a store has not kept all, it has kept the first."""
        kept = zip(save.spaces[: save.ticket.pages], save.names, strict=False)
        for namespace, run in groupby(kept, key=itemgetter(0)):
            self.on_saved(namespace, b"".join([name.page for _, name in run]))


def _namespace(node: Node) -> Namespace:
    assert node.space is not None
    return node.space.namespace


def _above(node: Node) -> Iterator[Node]:
    above = node.above
    while above is not None:
        yield above
        above = above.above


def _path(node: Node, begin: int, end: int) -> list[tuple[Node, int, int]]:
    """The pieces of the path down to `node` from one depth to another, in order."""
    pieces: list[tuple[Node, int, int]] = []
    above: Node | None = node
    while above is not None and begin < end:
        start = above.depth - len(above.key)
        pieces.append((above, max(begin, start), end))
        end = min(end, start)
        above = above.above
    return pieces[::-1]


def _slots_of(path: Sequence[tuple[Node, int, int]]) -> Int32Array:
    """The host slots of a page that lies in these pieces of nodes."""
    values: list[bytes] = []
    for node, begin, end in path:
        start = node.depth - len(node.key)
        values.append(bytes(node.host_value[begin - start : end - start]))
    return np.frombuffer(b"".join(values), np.int32)
