"""The prefix cache over all tiers: device slots, the host behind them, storage behind the host.

An allocation never waits for a copy, and never for a store: it takes free slots, then what can leave the device without
loss, then the coldest. Copies and pages are under way meanwhile; `tick` follows them, and is called for every step and,
while `pending`, now and then when there are none.

    acquire     hit on the device: slots at once; hit on the host: `lease.load_back`, then `lease.loading` until ready
    prefetch    storage -> host, while the request waits for its turn
    tick        ends what has ended, mirrors ahead, saves
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hicache.audit_tiers import audit_host
from hicache.backing import Backing, BackingRules
from hicache.cache import Hit, Holdings, Lease, Prefetch, PrefixCache
from hicache.copies.cost import LoadCostModel
from hicache.copies.transfer import LayerGate, Transfer
from hicache.errors import LeaseError
from hicache.events import EventLog
from hicache.fetches import Fetch
from hicache.flights import Flights, LoadBack
from hicache.host import HostSlots, MirrorRules, WriteBack, WritePolicy
from hicache.keys import TOKEN_BYTES, Int32Array, Namespace, PrefixKey
from hicache.pages import PagePool
from hicache.radix.naming import PageNames
from hicache.radix.node import Node
from hicache.radix.policy import EvictionPolicy
from hicache.radix.shares import Share
from hicache.stats import CopyDurations, TierSpeeds, TierStats
from hicache.storage.io import PageIo


@dataclass(frozen=True, slots=True)
class HostTier:
    """What the host tier consists of."""

    num_slots: int
    transfer: Transfer
    write_policy: WritePolicy = field(default_factory=WriteBack)
    rules: MirrorRules = field(default_factory=MirrorRules)
    cost: LoadCostModel = field(default_factory=LoadCostModel)


@dataclass(frozen=True, slots=True)
class StorageTier:
    """What the storage tier consists of. `pool` is the one that the host tier's transfer copies to.

    The page size of `names` is a multiple of the tree's.
    """

    io: PageIo
    pool: PagePool
    names: PageNames
    rules: BackingRules = field(default_factory=BackingRules)


class TieredCache(PrefixCache):
    """A `PrefixCache` whose evicted prefixes go to the host, and on to storage, and come back from there.

    Invariant, beside the base class's: every host slot is free, held by exactly one node, by a ghost that a copy still
    uses, or by a fetch.
    """

    def __init__(
        self,
        num_slots: int,
        host: HostTier,
        *,
        page_size: int = 1,
        policy: EvictionPolicy | None = None,
        shares: Mapping[str, Share] | None = None,
        storage: StorageTier | None = None,
        events: EventLog | None = None,
    ) -> None:
        """Storage and events must share their names, whose pages fit the tree's: ValueError otherwise."""
        if storage is not None and events is not None and events.names is not storage.names:
            raise ValueError("storage and events must share one object for names")
        self._host = HostSlots(host.num_slots, page_size)
        super().__init__(
            num_slots,
            page_size=page_size,
            policy=policy,
            shares=shares,
            host=self._host,
            names=None if storage is None else storage.names,
            events=events,
        )
        self._write_policy = host.write_policy
        self._rules = host.rules
        self._cost = host.cost
        self._declined_loads = 0
        self._mirroring_ahead = False
        self._now = 0.0
        self._flights = Flights(
            self._tree, self._removal, self._host, host.transfer, host.rules, self._slots.free, self._mirrored
        )
        self._flights.on_load_measured = lambda tokens, seconds: self._cost.observe_load(tokens, seconds, now=self._now)
        self._backing: Backing | None = None
        if storage is not None:
            self._backing = Backing(
                self._tree, self._removal, self._host, storage.io, storage.pool, storage.names, storage.rules
            )
            if events is not None:
                self._backing.saves.on_saved = events.saved

    @property
    def num_returning_slots(self) -> int:
        return self._flights.num_returning_slots

    @property
    def pending(self) -> int:
        return super().pending + self._flights.pending + (0 if self._backing is None else self._backing.pending)

    def acquire(
        self,
        key: PrefixKey,
        *,
        now: float,
        max_tokens: int | None = None,
        priority: int = 0,
        tenant: str = "",
        prefetched: Prefetch | None = None,
    ) -> "TieredLease":
        """Match the longest prefix that the device has, and note how it goes on on the host.

        What the host has is not loaded before `lease.load_back`.
        """
        assert prefetched is None or isinstance(prefetched, Fetch)
        self._claim(key, tenant)
        parts = key.parts(self.page_size)
        limit = self._limit(max_tokens)
        node, values = self._tree.match(parts, limit, now, priority)
        on_host = self._tree.match_on_host(parts, node, limit, now, priority)
        return TieredLease(self, key, node, b"".join(values), priority, tenant, on_host, prefetched)

    def prefetch(self, key: PrefixKey, *, now: float, max_tokens: int | None = None, tenant: str = "") -> Fetch | None:
        if self._backing is None:
            return None
        limit = self._limit(max_tokens)
        device, host, _ = self._tree.match_length(key.parts(self.page_size), limit)
        return self._backing.fetch(key, device + host, limit, tenant, now)

    def is_loading(self, key: PrefixKey, *, max_tokens: int | None = None) -> bool:
        return self._tree.match_length(key.parts(self.page_size), self._limit(max_tokens))[2]

    def drop(self, namespace: Namespace) -> Holdings:
        freed = super().drop(namespace)
        if self._backing is not None:
            self._backing.drop(namespace)
        return freed

    def tick(self, now: float) -> None:
        super().tick(now)
        self._now = now
        self._flights.poll(now)
        if self._backing is not None:
            self._backing.poll(now)
        if self._removal.has_limbo:
            return
        self._flights.mirror_wanted(now)
        self._mirror_ahead(now)

    def prepare(self, num_slots: int, *, now: float) -> None:
        self._slots.reap_all()
        self._now = now
        self._flights.mirror_ahead(num_slots * TOKEN_BYTES, self._slots.num_free * TOKEN_BYTES, now)

    def observe_prefill(self, num_tokens: int, seconds: float, *, now: float) -> None:
        self._cost.observe_prefill(num_tokens, seconds, now=now)

    def flush(self, *, now: float) -> None:
        if self._backing is None:
            return
        self._slots.reap_all()
        self._now = now
        pending = list(self._tree.roots.tops.values())
        while pending:
            node = pending.pop()
            self._flights.want(node)
            pending.extend(node.children.values())
        self._flights.mirror_wanted(now)

    def tier_stats(self) -> TierStats:
        flights, removal, backing = self._flights, self._removal, self._backing
        host_bytes = sum(account.host_bytes for account in self._shares.accounts)
        return TierStats(
            host_slots=self._host.num_slots,
            host_free_slots=self._host.num_free,
            host_cached_slots=host_bytes // TOKEN_BYTES,
            settled_slots=self._tree.queues.settled_bytes // TOKEN_BYTES,
            flying_tokens=flights.flying_bytes // TOKEN_BYTES,
            pending=self.pending,
            moved_tokens=removal.moved_bytes // TOKEN_BYTES,
            lost_tokens=removal.lost_bytes // TOKEN_BYTES,
            host_lost_tokens=removal.host_lost_bytes // TOKEN_BYTES,
            mirrored_tokens=flights.mirrored_tokens,
            loaded_tokens=flights.loaded_tokens,
            mirror_failures=flights.mirror_failures,
            load_failures=flights.load_failures,
            stalls=flights.stalls,
            declined_loads=self._declined_loads,
            sought_tokens=0 if backing is None else backing.fetches.sought_tokens,
            fetched_tokens=0 if backing is None else backing.fetches.fetched_tokens,
            saved_pages=0 if backing is None else backing.saves.saved_pages,
            failed_saves=0 if backing is None else backing.saves.failed,
            skipped_saves=0 if backing is None else backing.saves.skipped_pages,
            failed_fetches=0 if backing is None else backing.fetches.failed,
            late_fetches=0 if backing is None else backing.fetches.late,
            fetch_reserved_bytes=0 if backing is None else backing.fetches.reserved_bytes,
        )

    def take_durations(self) -> CopyDurations:
        flights, backing = self._flights, self._backing
        return CopyDurations(
            flights.mirror_durations.take(),
            flights.load_durations.take(),
            () if backing is None else backing.fetches.durations.take(),
            () if backing is None else backing.saves.durations.take(),
        )

    def tier_speeds(self) -> TierSpeeds:
        backing = self._backing
        fetch_tokens_per_s = 0.0 if backing is None else backing.fetches.speed.tokens_per_s
        return TierSpeeds(self._cost.load_tokens_per_s or 0.0, fetch_tokens_per_s)

    def check(self) -> None:
        super().check()
        self._host.check()
        ghosts = self._flights.ghosts
        fetching: list[Int32Array] = []
        waiting = [lease._on_host for lease in self._leases if isinstance(lease, TieredLease)]
        if self._backing is not None:
            ghosts += self._backing.saves.ghosts
            fetching = self._backing.fetches.slots
            waiting += self._backing.fetches.held
        audit_host(self._tree, self._removal.limbo, ghosts, self._host, fetching, waiting)

    def _quarantine(self) -> Sequence[Int32Array]:
        return self._flights.quarantine

    def _mirror_ahead(self, now: float) -> None:
        num_free = self._slots.num_free * TOKEN_BYTES
        loss_free = num_free + self._tree.queues.settled_bytes + self._flights.flying_bytes
        if loss_free < self._watermark(self._rules.low_watermark):
            self._mirroring_ahead = True
        if self._mirroring_ahead:
            wanted = self._watermark(self._rules.high_watermark)
            self._mirroring_ahead = self._flights.mirror_ahead(wanted, num_free, now)

    def _watermark(self, fraction: float) -> int:
        # A host that is small must not be filled with copies of what the device still has.
        return min(int(fraction * self.num_slots), self._host.num_slots // 2 + self._slots.num_free) * TOKEN_BYTES

    def _mirrored(self, nodes: Sequence[Node]) -> None:
        if self._backing is not None:
            for node in self._backing.save(nodes):
                self._flights.want(node)

    def _lease_ended(self, node: Node) -> None:
        """Called when a lease on a node ends."""
        if node.space is not None and self._write_policy.wants(node):
            above: Node | None = node
            while above is not None and not above.host_value:
                self._flights.want(above)
                above = above.above


class TieredLease(Lease):
    """A lease that can load back what the host has behind its hit.

        slots    [ matched | loading ...      | reserved behind it )
        owner      tree      private            private

    While `loading` nothing may be committed, and nothing be reserved but by who follows the load through its gate.
    Whatever becomes of the load, `loading` ends, and then `num_tokens` says what there is.
    """

    __slots__ = ("_fetch", "_follows", "_key", "_load", "_loaded_tokens", "_on_host", "_tiers")

    def __init__(
        self,
        cache: TieredCache,
        key: PrefixKey,
        node: Node | None,
        value: bytes,
        priority: int,
        tenant: str,
        on_host: Node | None,
        fetch: Fetch | None,
    ) -> None:
        """Made by `TieredCache.acquire`; `on_host` is the last node of what the host has behind `node`."""
        super().__init__(cache._ground, key.namespaces, node, value, priority, tenant)
        self._tiers = cache
        self._key = key
        self._fetch = fetch
        self._on_host = on_host
        self._load: LoadBack | None = None
        self._loaded_tokens = 0
        self._follows = False
        if on_host is not None:
            on_host.host_ref_counter += 1
            cache._tree.queues.replace(on_host)

    @property
    def hit(self) -> Hit:
        """What was found and is used: on the device, and what was loaded back, by where it had been."""
        first, end = self._hit_tokens, self._hit_tokens + self._loaded_tokens
        storage = 0
        if self._fetch is not None:
            fetched_end = self._fetch.first_token + self._fetch.fetched_tokens
            storage = max(0, min(end, fetched_end) - max(first, self._fetch.first_token))
        return Hit(first, self._loaded_tokens - storage, storage)

    @property
    def loading(self) -> bool:
        return self._load is not None

    @property
    def gate(self) -> LayerGate | None:
        return None if self._load is None else self._load.ticket.gate

    def follow(self) -> None:
        if self.gate is None:
            return super().follow()
        assert self._load is not None
        assert not self._follows
        self._follows = True
        self._num_tokens += len(self._load.device_slots)
        return None

    def load_back(self, *, now: float) -> bool:
        cache = self._tiers
        self._held()
        chain = self._chain()
        wanted = sum(len(node.key) for node in chain) // TOKEN_BYTES
        if not wanted or cache._flights.loads_stall or not cache._cost.worth_loading(wanted, now=now):
            cache._declined_loads += bool(wanted)
            self._let_go_of_host()
            return False
        tenant = self._owner.tenant
        wanted = min(wanted, cache.num_available_slots(tenant) // cache.page_size * cache.page_size)
        last = int(self._slot_ids[self._capacity - 1]) if self._capacity else None
        slots = cache._slots.allocate(wanted, last, tenant) if wanted else None
        nodes = [] if slots is None else _front(cache, self._chain(), len(slots) * TOKEN_BYTES)
        size = sum(len(node.key) for node in nodes) // TOKEN_BYTES
        if slots is not None:
            cache._slots.free(slots[size:])
        if slots is None or not size:
            self._let_go_of_host()
            return False
        self._append(slots[:size])
        self._load = cache._flights.load(nodes, self, slots[:size].copy(), now)
        self._let_go_of_host()
        if not self._load.ticket.pending:
            cache._flights.poll(now)
        return self.loading

    def loaded(self, now: float) -> None:
        """The content is in the slots: publish them."""
        assert self._load is not None
        num_tokens = len(self._load.device_slots)
        self._load = None
        self._loaded_tokens = num_tokens
        if not self._follows:
            self._num_tokens += num_tokens
        self._follows = False
        self.commit(self._key.prefix(self._hit_tokens + num_tokens), now=now)

    def not_loaded(self) -> None:
        """The content did not come; the slots are the copy's, which may still write to them."""
        self._give_up_load()

    def release(self) -> None:
        if self._ground is None:
            return
        if self._load is not None:
            load = self._load
            self._give_up_load()
            self._tiers._flights.abandon(load)
        self._let_go_of_host()
        node, expelled = self._node, self._expelled
        super().release()
        if node is not None and not expelled:
            self._tiers._lease_ended(node)

    def reserve(self, num_tokens: int, *, now: float) -> bool:
        if not self._follows:
            self._assert_ready()
        self._let_go_of_host()  # what is computed now is not loaded any more
        return super().reserve(num_tokens, now=now)

    def commit(self, key: PrefixKey, *, now: float) -> None:
        self._assert_ready()
        super().commit(key, now=now)

    def _give_up_load(self) -> None:
        """The slots of the load are not this lease's any more; what was reserved behind them moves up."""
        assert self._load is not None
        first, end = self._hit_tokens, self._hit_tokens + len(self._load.device_slots)
        # A new array: views that were handed out keep seeing what they saw.
        self._slot_ids = np.concatenate((self._slot_ids[:first], self._slot_ids[end : self._capacity]))
        self._num_tokens, self._capacity = first, len(self._slot_ids)
        self._load = None
        self._follows = False

    def _assert_ready(self) -> None:
        self._held()
        if self._load is not None:
            raise LeaseError("the lease is loading")

    def _chain(self) -> list[Node]:
        """What can be loaded now behind the hit, from the top down."""
        chain: list[Node] = []
        above = self._on_host
        while above is not None and above is not self._node:
            chain.append(above)
            above = above.above
        if above is not self._node or self._expelled:
            return []
        chain.reverse()
        for index, node in enumerate(chain):
            if node.space is None or not node.mirrored:
                return chain[:index]
        return chain

    def _let_go_of_host(self) -> None:
        node, self._on_host = self._on_host, None
        if node is not None:
            node.host_ref_counter -= 1
            self._tiers._tree.queues.replace(node)


def _front(cache: TieredCache, chain: Sequence[Node], size: int) -> list[Node]:
    """The first `size` bytes of a chain of nodes; the one in which they end is split."""
    nodes: list[Node] = []
    for node in chain:
        if size <= 0:
            break
        nodes.append(node if len(node.key) <= size else cache._tree.split(node, size))
        size -= len(nodes[-1].key)
    return nodes
