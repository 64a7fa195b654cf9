"""The storage tier behind the host: pages that are saved when the host has them, and fetched while a request waits.

Knows which pages of the tree are where, and no store: it speaks to a `PageIo`, and polls its tickets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hicache.fetches import Fetch, Fetches, FetchRules
from hicache.host import HostSlots
from hicache.keys import Namespace, PrefixKey
from hicache.pages import KnownPages, PagePool, group_of
from hicache.radix.naming import PageNames
from hicache.radix.node import Node
from hicache.radix.removal import Removal
from hicache.radix.tree import RadixTree
from hicache.saves import Saves
from hicache.storage.io import IoState, IoTicket, PageIo

_REMOVAL_RETRY_S = 1.0


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


class Backing:
    """What the storage tier does for one cache.

    Invariant: nothing is fetched of a group that storage was told to remove, before it has.
    """

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
        self._io = io
        self._names = names
        self._known = KnownPages()
        self._removals: dict[bytes, IoTicket] = {}  # by group, those that have not succeeded
        self._retry_removals_at = float("-inf")
        self.saves = Saves(tree, removal, io, pool, names, self._known, rules.max_save_tokens)
        # What storage brings, or does not bring because it hangs, must not drive out all that a small host has.
        max_fetch_bytes = min(rules.max_fetch_bytes, pool.page_bytes(max(host.num_slots // 2, names.page_size)))
        fetch_rules = FetchRules(max_fetch_bytes, rules.fetch_timeout_s, rules.min_fetch_tokens)
        self.fetches = Fetches(tree, removal, host, io, pool, names, self._known, fetch_rules)

    @property
    def pending(self) -> int:
        """Saves, fetches and removals that have not ended."""
        removals = sum(ticket.pending for ticket in self._removals.values())
        return len(self.saves) + len(self.fetches) + removals

    def save(self, nodes: Sequence[Node]) -> list[Node]:
        """Save the pages that these nodes complete on the host. Returns those that must come there for it, too."""
        return self.saves.save(nodes)

    def fetch(self, key: PrefixKey, found: int, limit: int, tenant: str, now: float) -> Fetch | None:
        """Ask storage for what `key` has behind `found` and up to `limit` bytes; None: there is nothing to ask for."""
        # Reads overtake removals: what was dropped would come back.
        if self._removals and any(self._group(namespace) in self._removals for namespace in key.namespaces):
            return None
        return self.fetches.fetch(key, found, limit, tenant, now)

    def drop(self, namespace: Namespace) -> None:
        """A namespace is dropped: nothing of it is fetched or kept."""
        group = self._group(namespace)
        self.fetches.cancel(namespace)
        self.saves.cancel(group)
        self._remove(group)

    def poll(self, now: float) -> None:
        """Take note of what has ended, and give up what takes too long."""
        self.saves.poll()
        self.fetches.poll(now)
        if self._removals:
            self._poll_removals(now)

    def _poll_removals(self, now: float) -> None:
        """Forget removals that are done, and try those again that failed."""
        self._removals = {group: each for group, each in self._removals.items() if each.state is not IoState.DONE}
        failed = [group for group, each in self._removals.items() if not each.pending]
        if failed and now >= self._retry_removals_at:
            self._retry_removals_at = now + _REMOVAL_RETRY_S
            for group in failed:
                self._remove(group)

    def _remove(self, group: bytes) -> None:
        self._known.clear()  # what is computed there again must be saved again
        self._removals[group] = self._io.remove_group(group)

    def _group(self, namespace: Namespace) -> bytes:
        return group_of(namespace, self._names.seed)
