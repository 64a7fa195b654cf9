"""Pages on their way from storage to the host, while the request that needs them waits for its turn.

lookup    how many of the pages behind the hit the store has; bytes are reserved for what is asked for
load      into host slots of their own, which nobody else knows
done      the leading pages that came are attached to the tree as cold nodes; the rest is freed. What they hang below
stays on the host until then, if it is there
given up  cancelled, too late, or its namespace dropped: freed when the store has let go of it
"""

from dataclasses import dataclass

import numpy as np

from hicache.host import HostSlots
from hicache.keys import TOKEN_BYTES, Int32Array, Namespace, PrefixKey
from hicache.pages import KnownPages, PagePool, page_names
from hicache.radix.naming import PageNames
from hicache.radix.node import Node
from hicache.radix.removal import Removal
from hicache.radix.shares import Owner
from hicache.radix.tree import RadixTree
from hicache.stats import Durations, Speed
from hicache.storage.io import IoState, IoTicket, PageIo
from hicache.storage.store import PageName


@dataclass(frozen=True, slots=True)
class FetchRules:
    """How much may be on its way, and how long a request may wait for it."""

    max_bytes: int
    timeout_s: float
    min_tokens: int  # fewer are computed instead


class Fetch:
    """What storage brings for one request. `pending` until it has ended or was given up."""

    def __init__(self, key: PrefixKey, first_page: int, names: list[PageName], tenant: str, deadline: float) -> None:
        self.key = key
        self.first_page = first_page
        self.names = names
        self.owner = Owner(key.namespaces[-1], tenant)
        self.deadline = deadline
        self.pending = True
        self.late = False  # given up because it took too long
        self.fetched_tokens = 0  # that came, and were attached
        self.first_token = 0  # where they begin
        self.slots: Int32Array = np.empty(0, np.int32)
        self.held: Node | None = None  # what it will hang below
        self.lookup_s = 0.0
        self.ticket: IoTicket

    def cancel(self) -> None:
        """Nobody waits for it any more. Cancelling again is harmless."""
        if self.pending:
            self.pending = False
            self.ticket.cancel()


class Fetches:
    """Starts fetches, and follows them to their end.

    Invariant: what is reserved is what fetches that have not ended asked for.
    """

    def __init__(
        self,
        tree: RadixTree,
        removal: Removal,
        host: HostSlots,
        io: PageIo,
        pool: PagePool,
        names: PageNames,
        known: KnownPages,
        rules: FetchRules,
    ) -> None:
        self._tree = tree
        self._removal = removal
        self._host = host
        self._io = io
        self._pool = pool
        self._names = names
        self._known = known
        self._rules = rules
        self._page_tokens = names.page_size
        self._page_bytes = pool.page_bytes(names.page_size)
        self._fetches: list[Fetch] = []
        self.reserved_bytes = 0
        self.sought_tokens = 0  # that the store was asked for, and has answered
        self.fetched_tokens = self.failed = self.late = 0
        self.durations = Durations()  # of look-ups and reads
        self.speed = Speed()  # of both together, where something came

    def __len__(self) -> int:
        return len(self._fetches)

    @property
    def slots(self) -> list[Int32Array]:
        """Host slots that no node has yet."""
        return [fetch.slots for fetch in self._fetches]

    @property
    def held(self) -> list[Node | None]:
        """The nodes below which fetches will be attached."""
        return [fetch.held for fetch in self._fetches]

    def fetch(self, key: PrefixKey, found: int, limit: int, tenant: str, now: float) -> Fetch | None:
        """Ask storage for the pages of `key` behind `found` and up to `limit` bytes; None: there is nothing to ask for.

        Asks for less, or nothing, while other fetches use up the bytes there are; for nothing as long as the store has
        not let go of one that took too long: whoever comes would wait in vain, too.
        """
        if any(other.late for other in self._fetches):
            return None
        page_bytes = self._names.page_bytes
        first = found // page_bytes
        wanted = min(limit, len(key) * TOKEN_BYTES) // page_bytes - first
        room = (self._rules.max_bytes - self.reserved_bytes) // self._page_bytes
        if wanted * self._page_tokens < self._rules.min_tokens or room < 1:
            return None
        names = page_names(key, self._names)[first : first + min(wanted, room)]
        fetch = Fetch(key, first, names, tenant, now + self._rules.timeout_s)
        self.reserved_bytes += len(names) * self._page_bytes
        self._hold(fetch)
        fetch.ticket = self._io.lookup(names)
        self._fetches.append(fetch)
        return fetch

    def cancel(self, namespace: Namespace) -> None:
        """Nothing of a namespace is to be fetched any more."""
        for fetch in self._fetches:
            if namespace in fetch.key.namespaces:
                fetch.cancel()

    def poll(self, now: float) -> None:
        """Take note of what has ended, and give up what takes too long."""
        for fetch in list(self._fetches):
            # Room on the host is made among nodes whose path is whole: what was dropped has to be gone.
            if not fetch.ticket.pending and not self._removal.has_limbo:
                self._advance(fetch, now)
            elif fetch.pending and now >= fetch.deadline:
                self.late += 1
                fetch.late = True
                fetch.cancel()

    def _advance(self, fetch: Fetch, now: float) -> None:
        """One of a fetch's tickets has ended: take the next step."""
        ticket = fetch.ticket
        if ticket.state is IoState.DONE or ticket.seconds:
            self.durations.add(ticket.seconds)
        if ticket.state is IoState.DONE and not len(fetch.slots):
            self.sought_tokens += len(fetch.names) * self._page_tokens
        if ticket.state is IoState.DONE:
            self._known.discard(fetch.names[ticket.pages :])
        if len(fetch.slots):
            self._attach(fetch, now)
        elif ticket.state is IoState.DONE and ticket.pages and fetch.pending:
            found = ticket.pages * self._page_tokens
            claimant = self._tree.shares.of(fetch.owner.tenant)
            slots = self._host.allocate_most(found, self._page_tokens, self._removal, claimant)
            if slots is not None:
                self._load(fetch, slots)
                return
        if ticket.state is IoState.FAILED and fetch.pending:
            self.failed += 1
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

    def _load(self, fetch: Fetch, slots: Int32Array) -> None:
        """Load the first pages, those for which there are slots."""
        pages = slots.reshape(-1, self._page_tokens)
        fetch.slots = slots
        fetch.lookup_s = fetch.ticket.seconds
        fetch.ticket = self._io.load(
            fetch.names[: len(pages)], lambda index, content: self._pool.write_page(pages[index], content)
        )

    def _attach(self, fetch: Fetch, now: float) -> None:
        """The store has let go of a fetch's host slots: what came goes to the tree, the rest is free."""
        count = fetch.ticket.pages * self._page_tokens
        self.speed.add(count, fetch.lookup_s + fetch.ticket.seconds)
        unneeded = count
        if fetch.pending and count:
            begin = fetch.first_page * self._names.page_bytes
            tree_page = self._tree.page_bytes // TOKEN_BYTES
            value = fetch.slots[:count].view(np.uint8).data
            unneeded = (
                self._tree.attach_on_host(fetch.key.parts(tree_page), begin, value, now, fetch.owner) // TOKEN_BYTES
            )
            fetch.first_token = begin // TOKEN_BYTES + unneeded
            fetch.fetched_tokens = count - unneeded
            self.fetched_tokens += fetch.fetched_tokens
            for name in fetch.names[: fetch.ticket.pages]:
                self._known.add(name.page)
        self._host.free(fetch.slots[:unneeded])
        self._host.free(fetch.slots[count:])
        fetch.slots = fetch.slots[:0]
