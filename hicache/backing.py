"""The storage tier behind the host: pages that are saved when the host has them, and fetched while a request waits.

Knows which pages of the tree are where, and no store: it speaks to a `PageIo`, and polls its tickets.

    save      pages that are whole on the host, under the node they end in; read from host slots that the save holds
    fetch     lookup    how many of the pages behind the hit the store has; bytes are reserved for what is asked for
              load      into host slots of their own, which nobody else knows
              done      the leading pages that came are attached to the tree as cold nodes; the rest is freed.
                        What they hang below stays on the host until then, if it is there
              given up  cancelled, too late, or its namespace dropped: freed when the store has let go of it
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Protocol

import numpy as np

from hicache.host import HostSlots
from hicache.keys import PAGE_HASH_BYTES, TOKEN_BYTES, Int32Array, Namespace, PrefixKey, page_hashes
from hicache.radix.naming import PageNames
from hicache.radix.node import Account, Edge, Node
from hicache.radix.removal import Removal
from hicache.radix.tree import RadixTree
from hicache.storage.io import IoState, IoTicket, PageIo
from hicache.storage.store import GROUP_BYTES, PageName

_KNOWN_PAGES = 200_000  # names of pages that were saved or found lately
_INCOMPLETE = 4_096  # nodes whose copy is waited for


class PagePool(Protocol):
    """The content of host slots."""

    def page_bytes(self, num_tokens: int) -> int: ...

    def read_page(self, host_slots: Int32Array) -> bytes: ...

    def write_page(self, host_slots: Int32Array, page: bytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BackingRules:
    """How much of the host the storage tier may use, and how long a request may wait for it."""

    max_fetch_bytes: int = 256 << 20  # of all requests together
    fetch_timeout_s: float = 2.0
    min_fetch_tokens: int = 64  # fewer are computed instead
    max_save_tokens: int = 65_536  # that wait to be saved, and cannot leave the host meanwhile

    def __post_init__(self) -> None:
        for name in ("max_fetch_bytes", "fetch_timeout_s", "min_fetch_tokens", "max_save_tokens"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be greater than 0, got {getattr(self, name)}")


class Save:
    """Pages on their way to storage. Holds the host slots of its nodes."""

    loads = False

    def __init__(self, nodes: list[Node], num_tokens: int, names: list[PageName]) -> None:
        self.nodes = nodes
        self.num_tokens = num_tokens
        self.names = names
        self.ticket: IoTicket


class Fetch:
    """What storage brings for one request. `pending` until it has ended or was given up."""

    def __init__(
        self, key: PrefixKey, first_page: int, names: list[PageName], account: Account, deadline: float
    ) -> None:
        self.key = key
        self.first_page = first_page
        self.names = names
        self.account = account
        self.deadline = deadline
        self.pending = True
        self.fetched_tokens = 0  # that came, and were attached
        self.first_token = 0  # where they begin
        self.slots: Int32Array = np.empty(0, np.int32)
        self.held: Node | None = None  # what it will hang below
        self.ticket: IoTicket

    def cancel(self) -> None:
        """Nobody waits for it any more. Cancelling again is harmless."""
        if self.pending:
            self.pending = False
            self.ticket.cancel()


class Backing:
    """Saves and fetches. Invariant: what is reserved is what fetches that have not ended asked for."""

    def __init__(
        self,
        tree: RadixTree,
        removal: Removal,
        host: HostSlots,
        io: PageIo,
        pool: PagePool,
        names: PageNames,
        rules: BackingRules,
    ) -> None:
        self._tree = tree
        self._removal = removal
        self._host = host
        self._io = io
        self._pool = pool
        self._names = names
        self._rules = rules
        self._page_tokens = names.page_size
        self._page_bytes = pool.page_bytes(names.page_size)
        self._saves: list[Save] = []
        self._fetches: list[Fetch] = []
        self._known: OrderedDict[bytes, None] = OrderedDict()
        # By the nodes that they lack on the host: the ways below these to pages that are not whole there.
        self._incomplete: OrderedDict[Node, dict[tuple[Edge, ...], None]] = OrderedDict()
        self._asked_for: OrderedDict[Node, None] = OrderedDict()
        self._saving_tokens = 0
        self.reserved_bytes = 0
        self.saved_pages = self.failed_saves = self.skipped_saves = 0
        self.fetched_tokens = self.failed_fetches = self.late_fetches = 0

    @property
    def pending(self) -> int:
        """Saves and fetches that have not ended."""
        return len(self._saves) + len(self._fetches)

    @property
    def saving(self) -> int:
        return len(self._saves)

    @property
    def ghosts(self) -> list[Node]:
        return [node for save in self._saves for node in save.nodes if node.space is None]

    @property
    def fetching_slots(self) -> list[Int32Array]:
        """Host slots that no node has yet."""
        return [fetch.slots for fetch in self._fetches]

    @property
    def held(self) -> list[Node | None]:
        """The nodes below which fetches will be attached."""
        return [fetch.held for fetch in self._fetches]

    # Saves

    def save(self, nodes: Sequence[Node]) -> list[Node]:
        """Save the pages that these nodes complete on the host. Returns nodes above them which must come to the host
        first, because their pages are missing in storage.
        """
        names: list[PageName] = []
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
                self._learn(name.page)
                names.append(name)
                pages.append(_slots_of(path))
                held.update(dict.fromkeys(piece for piece, _, _ in path))
        for node in held:
            self._asked_for.pop(node, None)
        if names:
            self._start_save(list(held), names, pages)
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

    def _start_save(self, nodes: list[Node], names: list[PageName], pages: list[Int32Array]) -> None:
        num_tokens = len(pages) * self._page_tokens
        if self._saving_tokens + num_tokens > self._rules.max_save_tokens and self._saves:
            self.skipped_saves += len(pages)
            self._unlearn(names)
            return
        save = Save(nodes, num_tokens, names)
        for node in nodes:
            node.holders = (*node.holders, save)
            node.host_ref_counter += 1
            self._tree.queues.replace(node)
        self._saving_tokens += num_tokens
        self._saves.append(save)
        save.ticket = self._io.save(names, lambda index: self._pool.read_page(pages[index]))

    def _pages_of(self, node: Node) -> Iterator[tuple[PageName, list[tuple[Node, int, int]]]]:
        """Every page that ends in `node`, with the pieces of nodes that it consists of: (node, begin, end), in bytes of
        depth.
        """
        page_bytes = self._names.page_bytes
        group = self.group(node)
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

    def _learn(self, name: bytes) -> None:
        self._known[name] = None
        if len(self._known) > _KNOWN_PAGES:
            self._known.popitem(last=False)

    def _unlearn(self, names: Sequence[PageName]) -> None:
        for name in names:
            self._known.pop(name.page, None)

    def group(self, node: Node) -> bytes:
        assert node.space is not None
        return group_of(node.space.namespace, self._names.seed)

    # Fetches

    def fetch(self, key: PrefixKey, found: int, limit: int, account: Account, now: float) -> Fetch | None:
        """Ask storage for the pages of `key` behind `found` and up to `limit` bytes; None: there is nothing to ask for.

        Asks for less, or nothing, while other fetches use up the bytes there are.
        """
        page_bytes = self._names.page_bytes
        first = found // page_bytes
        wanted = min(limit, len(key) * TOKEN_BYTES) // page_bytes - first
        room = (self._rules.max_fetch_bytes - self.reserved_bytes) // self._page_bytes
        if wanted * self._page_tokens < self._rules.min_fetch_tokens or room < 1:
            return None
        names = self._page_names(key)[first : first + min(wanted, room)]
        fetch = Fetch(key, first, names, account, now + self._rules.fetch_timeout_s)
        self.reserved_bytes += len(names) * self._page_bytes
        self._hold(fetch)
        fetch.ticket = self._io.lookup(names)
        self._fetches.append(fetch)
        return fetch

    def _page_names(self, key: PrefixKey) -> list[PageName]:
        names = page_hashes(key, self._page_tokens, self._names.seed)
        groups: list[bytes] = []
        for namespace, _, size in key.parts(self._page_tokens):
            groups += [group_of(namespace, self._names.seed)] * (size // self._names.page_bytes)
        return [PageName(group, name) for group, name in zip(groups, names, strict=True)]

    def drop(self, namespace: Namespace) -> None:
        """A namespace is dropped: nothing of it is fetched or kept."""
        for fetch in self._fetches:
            if namespace in fetch.key.namespaces:
                fetch.cancel()
        self._known.clear()  # what is computed there again must be saved again
        group = group_of(namespace, self._names.seed)
        for save in self._saves:
            if any(name.group == group for name in save.names):
                save.ticket.cancel()
        self._io.remove_group(group)

    # Ends

    def poll(self, now: float) -> None:
        """Take note of what has ended, and give up what takes too long."""
        for save in [save for save in self._saves if not save.ticket.pending]:
            self._save_ended(save)
        for fetch in list(self._fetches):
            # Room on the host is made among nodes whose path is whole: what was dropped has to be gone.
            if not fetch.ticket.pending and not self._removal.has_limbo:
                self._advance(fetch, now)
            elif fetch.pending and now >= fetch.deadline:
                self.late_fetches += 1
                fetch.cancel()

    def _save_ended(self, save: Save) -> None:
        self._saves.remove(save)
        self._saving_tokens -= save.num_tokens
        if save.ticket.state is IoState.DONE:
            self.saved_pages += save.ticket.pages
        else:
            self.failed_saves += 1
            self._unlearn(save.names)
        for node in save.nodes:
            self._removal.let_go(node, save)
            if node.space is not None:
                self._tree.merge_with_only_child(node)

    def _advance(self, fetch: Fetch, now: float) -> None:
        """One of a fetch's tickets has ended: take the next step."""
        ticket = fetch.ticket
        if ticket.state is IoState.DONE:
            self._unlearn(fetch.names[ticket.pages :])
        if len(fetch.slots):
            self._attach(fetch, now)
        elif ticket.state is IoState.DONE and ticket.pages and fetch.pending:
            count = ticket.pages
            slots = self._host.allocate(count * self._page_tokens, self._removal, fetch.account)
            if slots is not None:
                self._load(fetch, count, slots)
                return
        if ticket.state is IoState.FAILED and fetch.pending:
            self.failed_fetches += 1
        fetch.pending = False
        self.reserved_bytes -= len(fetch.names) * self._page_bytes
        self._fetches.remove(fetch)
        self._let_go(fetch)

    def _hold(self, fetch: Fetch) -> None:
        """Room for a fetch must not be made where it is to be attached."""
        parts = fetch.key.parts(self._tree.page_bytes // TOKEN_BYTES)
        node, _ = self._tree.walk(parts, fetch.first_page * self._names.page_bytes)
        if node is not None:
            fetch.held = node
            node.host_ref_counter += 1
            self._tree.queues.replace(node)

    def _let_go(self, fetch: Fetch) -> None:
        node, fetch.held = fetch.held, None
        if node is not None:
            node.host_ref_counter -= 1
            self._tree.queues.replace(node)
            self._tree.merge_with_only_child(node)

    def _load(self, fetch: Fetch, count: int, slots: Int32Array) -> None:
        pages = slots.reshape(count, self._page_tokens)
        fetch.slots = slots
        fetch.ticket = self._io.load(
            fetch.names[:count], lambda index, content: self._pool.write_page(pages[index], content)
        )

    def _attach(self, fetch: Fetch, now: float) -> None:
        """The store has let go of a fetch's host slots: what came goes to the tree, the rest is free."""
        count = fetch.ticket.pages * self._page_tokens
        unneeded = count
        if fetch.pending and count:
            begin = fetch.first_page * self._names.page_bytes
            tree_page = self._tree.page_bytes // TOKEN_BYTES
            value = fetch.slots[:count].view(np.uint8).data
            unneeded = (
                self._tree.attach_on_host(fetch.key.parts(tree_page), begin, value, now, fetch.account) // TOKEN_BYTES
            )
            fetch.first_token = begin // TOKEN_BYTES + unneeded
            fetch.fetched_tokens = count - unneeded
            self.fetched_tokens += fetch.fetched_tokens
            for name in fetch.names[: fetch.ticket.pages]:
                self._learn(name.page)
        self._host.free(fetch.slots[:unneeded])
        self._host.free(fetch.slots[count:])
        fetch.slots = fetch.slots[:0]


def group_of(namespace: Namespace, seed: bytes) -> bytes:
    """Return what a store calls all pages of a namespace together."""
    person = b"radixgate.group"
    return blake2b(
        len(seed).to_bytes(4, "little") + seed + namespace.encode(), digest_size=GROUP_BYTES, person=person
    ).digest()


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
