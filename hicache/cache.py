"""The prefix cache over device slots: leases on cached prefixes, room for what they compute, and its return.

Ties the tree (which prefix lies where) to the allocator (which slots are free). No tensors, no clock, no lock: one
owner thread calls it and says what time it is, in seconds of a monotonic clock.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hicache.device_slots import DeviceSlots
from hicache.events import EventLog, Snapshot
from hicache.keys import TOKEN_BYTES, Int32Array, Namespace, PrefixKey
from hicache.lease import Ground, Hit, Lease
from hicache.radix.accounts import Accounts
from hicache.radix.audit import Holding, audit
from hicache.radix.audit_queues import require
from hicache.radix.naming import PageNames
from hicache.radix.node import Node
from hicache.radix.policy import LRU, EvictionPolicy
from hicache.radix.removal import HostSlots, Removal
from hicache.radix.shares import Share, Shares
from hicache.radix.tree import RadixTree
from hicache.radix.watch import TierWatcher
from hicache.stats import CopyDurations, TierSpeeds, TierStats

__all__ = ["CacheStats", "Hit", "Holdings", "Lease", "Prefetch", "PrefixCache", "TenantHoldings"]


@dataclass(frozen=True, slots=True)
class CacheStats:
    """A snapshot. num_slots = free + cached + private, and cached includes locked."""

    num_slots: int
    free_slots: int
    cached_slots: int  # held by the tree; after a drop also by leases that still read them
    locked_slots: int  # cached and protected by open leases
    private_slots: int  # held by one lease each: not committed yet, duplicates, unfilled pages
    nodes: int
    leaves: int
    namespaces: int
    open_leases: int
    evicted_tokens: int  # since the start


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a namespace has in the tiers, in tokens."""

    device: int
    host: int


@dataclass(frozen=True, slots=True)
class TenantHoldings:
    """What the namespaces of one tenant have in the tiers, in tokens; of "", those that are public."""

    tenant: str
    device: int
    host: int
    namespaces: int


class Prefetch(Protocol):
    """What is on its way from storage for one request."""

    @property
    def pending(self) -> bool:
        """Whether waiting for it makes sense."""
        ...

    def cancel(self) -> None:
        """Nobody waits for it any more. Cancelling again is harmless."""
        ...


class NoHost:
    """The host tier of a cache that has none."""

    num_slots = 0

    def free_packed(self, value: bytearray) -> None:
        raise AssertionError("nothing lies on the host")


class PrefixCache:
    """A token-level prefix cache over `num_slots` slots of the device. `hicache.tiered` adds the tiers below it.

    Invariant: every slot is free, cached in exactly one node, or private to exactly one open lease.
    """

    def __init__(
        self,
        num_slots: int,
        *,
        page_size: int = 1,
        policy: EvictionPolicy | None = None,
        shares: Mapping[str, Share] | None = None,
        host: HostSlots | None = None,
        names: PageNames | None = None,
        watcher: TierWatcher | None = None,
        events: EventLog | None = None,
    ) -> None:
        """`shares` are those of tenants by name. `events` are told of what comes and goes, and bring names and watcher.

        Host, names and watcher are for the tiers below. Raises ValueError where a page of names is no multiple of
        `page_size`.
        """
        host = host or NoHost()
        if events is not None:
            names, watcher = events.names, events
        if names is not None and names.page_size % page_size:
            raise ValueError(f"the names' page_size ({names.page_size}) must be a multiple of page_size ({page_size})")
        self._shares = Shares(shares or {}, num_slots, host.num_slots, page_size)
        self._tree = RadixTree(page_size, policy or LRU(), self._shares, names, watcher)
        self._removal = Removal(self._tree, host)
        self._slots = DeviceSlots(num_slots, page_size, self._tree, self._removal, self._shares)
        self._leases: set[Lease] = set()
        self._ground = Ground(self._tree, self._slots, self._leases)
        self._accounts = Accounts(self._tree, self._shares)
        self.num_slots = num_slots
        self.page_size = page_size
        self.events = events  # what the tiers hold, told to others

    @property
    def num_free_slots(self) -> int:
        return self._slots.num_free

    @property
    def num_evictable_slots(self) -> int:
        return (self._tree.cached_bytes - self._tree.locked_bytes) // TOKEN_BYTES

    @property
    def num_cached_slots(self) -> int:
        return self._tree.cached_bytes // TOKEN_BYTES

    @property
    def max_lease_slots(self) -> int:
        """The most slots that a lease of any tenant can have: all but what is promised to others."""
        return self.max_lease_slots_of("")

    def max_lease_slots_of(self, tenant: str) -> int:
        """The most slots that a lease of `tenant` can have, as floors are now."""
        promised = self._shares.floor_bytes - self._shares.of(tenant).floor_bytes
        return (self.num_slots - promised // TOKEN_BYTES) // self.page_size * self.page_size

    def num_available_slots(self, tenant: str = "") -> int:
        """Slots that `tenant` can have now: free ones, and what can be evicted for it.

        It may be more, or less, as long as something is `pending` that a tenant with a floor had, and that was dropped.
        """
        return self._slots.num_available(tenant)

    def is_within_floor(self, tenant: str, num_private_slots: int) -> bool:
        """Whether `tenant` has no more than it is promised, with what its leases hold and the cache does not have."""
        account = self._shares.of(tenant)
        return account.device_bytes + num_private_slots * TOKEN_BYTES <= account.floor_bytes

    @property
    def num_returning_slots(self) -> int:
        """Slots that nobody owns, and that are free as soon as the copies have ended that still write to them."""
        return 0

    @property
    def pending(self) -> int:
        """What `tick` still has to see the end of: copies, pages on their way, dropped nodes."""
        return int(self._removal.has_limbo)

    def acquire(
        self,
        key: PrefixKey,
        *,
        now: float,
        max_tokens: int | None = None,
        priority: int = 0,
        tenant: str = "",
        prefetched: Prefetch | None = None,
    ) -> "Lease":
        """Match the longest cached prefix and hold it until the lease is released.

        The hit is in whole pages and at most `max_tokens`. `priority` protects what this request uses or stores, under
        a policy that looks at it. What the lease stores counts for `tenant`. `prefetched` is what storage brought for
        this request.
        """
        self._claim(key, tenant)
        node, values = self._tree.match(key.parts(self.page_size), self._limit(max_tokens), now, priority)
        return Lease(self._ground, key.namespaces, node, b"".join(values), priority, tenant)

    def peek(self, key: PrefixKey, *, max_tokens: int | None = None) -> Hit:
        """Return what `acquire` would hit, and change nothing."""
        device, host, _ = self._tree.match_length(key.parts(self.page_size), self._limit(max_tokens))
        return Hit(device // TOKEN_BYTES, host // TOKEN_BYTES)

    def changes(self, key: PrefixKey) -> tuple[int, ...]:
        """Return what differs whenever `peek` might find something else than before. Costs the same for any key."""
        return self._tree.roots.num_changes(key.namespaces)

    def drop(self, namespace: Namespace) -> Holdings:
        """Make everything in and below a namespace unreachable, at once and for what open leases would still add.

        Its slots come back when they are needed or by `tick`, whichever comes first; what leases hold, as they end.
        Returns what the namespace itself had and no lease holds: what others continue below it goes uncounted.
        """
        space = self._tree.roots.spaces.get(namespace)
        held = self.holdings(namespace)
        for lease in self._leases:
            lease.expel(namespace)
        locked = 0 if space is None else sum(len(node.value) for node in self._held_nodes() if node.space is space)
        self._removal.drop(namespace)
        return Holdings(held.device - locked // TOKEN_BYTES, held.host)

    def floor_slots(self, tenant: str) -> int:
        """Return what a tenant is promised of the device."""
        return self._shares.of(tenant).floor_bytes // TOKEN_BYTES

    def would_promise_more(self, tenant: str, floor_slots: int) -> bool:
        """Whether `set_share` with so many slots might promise a tenant more of the device than it has been."""
        return self._shares.wanted(tenant, floor_slots, 1.0).floor_bytes > self._shares.of(tenant).floor_bytes

    def set_share(self, tenant: str, floor_slots: int, weight: float = 1.0, *, largest_lease: int = 0) -> int:
        """Promise a tenant `floor_slots` of each tier from now on; 0: as configured. Returns what it is promised.

        That may be less: the floors of all leave `largest_lease` slots to a lease of anybody else, and a tenth of each
        tier. Costs O(nodes of the tenant) where it gets an account of its own, or has one no longer.
        """
        terms = self._shares.terms(tenant, floor_slots, weight, largest_lease)
        if self._shares.changes_account(tenant, terms):
            self._slots.reap_all()
            self._accounts.change(tenant, terms, self._held_nodes())
        else:
            self._shares.set(tenant, terms)
        return terms.floor_bytes // TOKEN_BYTES

    def tick(self, now: float) -> None:
        """Do a bounded part of what can wait. Called once for every step, and now and then while idle."""
        if self._removal.has_limbo:
            self._slots.reap()

    # What the tiers below have to do; without them there is nothing to do.

    def prefetch(
        self, key: PrefixKey, *, now: float, max_tokens: int | None = None, tenant: str = ""
    ) -> Prefetch | None:
        """Begin to bring what storage has of `key` nearer; None if there is nothing to wait for."""
        return None

    def is_loading(self, key: PrefixKey, *, max_tokens: int | None = None) -> bool:
        """Whether a part of what `acquire` would hit is being loaded back for somebody else, and will be here soon."""
        return False

    def prepare(self, num_slots: int, *, now: float) -> None:
        """Begin to copy what an allocation of `num_slots` would evict, so that it finds it copied."""

    def observe_prefill(self, num_tokens: int, seconds: float, *, now: float) -> None:
        """Learn how long computing so many tokens took, for the choice between loading and computing."""

    def flush(self, *, now: float) -> None:
        """Begin to bring everything to the lowest tier; `tick` follows until nothing is `pending`."""

    def tier_stats(self) -> TierStats | None:
        """Return the figures of the tiers below; None if there are none."""
        return None

    def take_durations(self) -> CopyDurations:
        """Return how long the copies took that have ended since the last call."""
        return CopyDurations()

    def tier_speeds(self) -> TierSpeeds:
        """Return how fast the tiers below are, as measured of late."""
        return TierSpeeds()

    @property
    def num_namespaces(self) -> int:
        """How many have something in a tier."""
        return len(self._tree.roots.spaces)

    def namespaces(self) -> tuple[Namespace, ...]:
        """Return those that have something in a tier."""
        return tuple(self._tree.roots.spaces)

    def holdings(self, namespace: Namespace) -> Holdings:
        """Return what a namespace has in each tier."""
        space = self._tree.roots.spaces.get(namespace)
        if space is None:
            return Holdings(0, 0)
        return Holdings(space.device_bytes // TOKEN_BYTES, space.host_bytes // TOKEN_BYTES)

    def tenants(self) -> list[TenantHoldings]:
        """Return what each tenant has in the tiers, by name. Costs O(namespaces)."""
        found: dict[str, TenantHoldings] = {}
        for space in self._tree.roots.spaces.values():
            device, host = space.device_bytes // TOKEN_BYTES, space.host_bytes // TOKEN_BYTES
            known = found.get(space.tenant) or TenantHoldings(space.tenant, 0, 0, 0)
            found[space.tenant] = TenantHoldings(
                space.tenant, known.device + device, known.host + host, known.namespaces + 1
            )
        return [found[tenant] for tenant in sorted(found)]

    def stats(self) -> CacheStats:
        cached = self.num_cached_slots
        free = self.num_free_slots
        return CacheStats(
            num_slots=self.num_slots,
            free_slots=free,
            cached_slots=cached,
            locked_slots=self._tree.locked_bytes // TOKEN_BYTES,
            private_slots=self.num_slots - free - cached,
            nodes=self._tree.num_nodes,
            leaves=self._tree.num_leaves,
            namespaces=len(self._tree.roots.spaces),
            open_leases=len(self._leases),
            evicted_tokens=(self._removal.lost_bytes + self._removal.moved_bytes) // TOKEN_BYTES,
        )

    def snapshot(self) -> Snapshot:
        """Return what the tiers hold, for whoever missed events. Costs O(nodes)."""
        if self.events is None:
            raise ValueError("the cache has no events")
        return self.events.snapshot(self._reachable())

    def check(self) -> None:
        """Recompute every invariant from scratch; InvariantError says what does not hold. Costs O(everything)."""
        self._slots.check()
        holdings = [lease.holding() for lease in self._leases]
        holdings += [Holding(None, 0, slots, slots, [], True) for slots in self._quarantine()]
        audit(self._tree, self._removal.limbo, self._slots.free_slots(), self.num_slots, holdings)
        if self.events is not None:
            require(
                self.events.digest() == self.snapshot().digest(), "the digest of events is not that of what is here"
            )

    def _quarantine(self) -> Sequence[Int32Array]:
        """Slots that nobody owns and that are not free yet."""
        return ()

    def _limit(self, max_tokens: int | None) -> int:
        """The most bytes that may be hit: whole pages."""
        if max_tokens is None:
            return sys.maxsize
        return max(max_tokens, 0) // self.page_size * self.page_size * TOKEN_BYTES

    def _claim(self, key: PrefixKey, tenant: str) -> None:
        """A tenant uses a key: say whose the namespaces are, as far as that is new."""
        if self._accounts.contradicts(key.namespaces, tenant):
            self._slots.reap_all()
            self._accounts.make_public(key.namespaces, tenant)

    def _reachable(self) -> Iterator[Node]:
        """Yield what is in reach, and what was dropped and not looked at yet."""
        pending = [*self._tree.roots.tops.values(), *self._removal.limbo]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())

    def _held_nodes(self) -> set[Node]:
        """What open leases hold of what is not dropped, roots included."""
        held: set[Node] = set()
        for lease in self._leases:
            node = lease.end
            while node is not None and node not in held:
                if node.space is not None:
                    held.add(node)
                node = node.parent
        return held
