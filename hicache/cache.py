"""The prefix cache over device slots: leases on cached prefixes, room for what they compute, and its return.

Ties the tree (which prefix lies where) to the allocator (which slots are free). No tensors, no clock, no lock: one
owner thread calls it and says what time it is, in seconds of a monotonic clock.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from hicache.copies.transfer import LayerGate
from hicache.errors import LeaseError
from hicache.keys import TOKEN_BYTES, Int32Array, Namespace, PrefixKey
from hicache.radix.audit import Holding, audit
from hicache.radix.naming import PageNames
from hicache.radix.node import Account, Node
from hicache.radix.policy import LRU, EvictionPolicy
from hicache.radix.removal import HostSlots, Removal
from hicache.radix.shares import Share, Shares
from hicache.radix.tree import RadixTree
from hicache.radix.watch import TierWatcher
from hicache.slots import SlotAllocator
from hicache.stats import TierStats

_SLOT_DTYPE = np.dtype(np.int32)
_frombuffer = np.frombuffer
_REAPED_NODES = 256  # of a dropped namespace, looked at in one go
_MIN_ROOM = 64  # slots; a lease's array starts with room for this many more


@dataclass(frozen=True, slots=True)
class Hit:
    """Leading tokens found, by the tier where they lie."""

    device: int
    host: int = 0
    storage: int = 0

    @property
    def total(self) -> int:
        return self.device + self.host + self.storage


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
        num_host_slots: int = 0,
        host: HostSlots | None = None,
        names: PageNames | None = None,
        watcher: TierWatcher | None = None,
    ) -> None:
        """`shares` are those of tenants by name. The last four are for the tiers below."""
        self._slots = SlotAllocator(num_slots, page_size)
        self._shares = Shares(shares or {}, num_slots, num_host_slots, page_size)
        self._tree = RadixTree(page_size, policy or LRU(), self._shares, names, watcher)
        self._removal = Removal(self._tree, host or NoHost())
        self._leases: set[Lease] = set()
        self.num_slots = num_slots
        self.page_size = page_size

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
        """The most slots that a lease of any tenant can ever have: all but what is promised to others."""
        return (self.num_slots - self._shares.num_floor_slots) // self.page_size * self.page_size

    def num_available_slots(self, tenant: str = "") -> int:
        """Slots that `tenant` can have now: free ones, and what can be evicted for it.

        It may be more as long as something is `pending` that a tenant with a floor had, and that was dropped.
        """
        return self._slots.num_free + self._evictable_for(self._shares.of(tenant)) // TOKEN_BYTES

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
        node, values = self._tree.match(key.parts(self.page_size), self._limit(max_tokens), now, priority)
        lease = Lease(self, key.namespaces, node, b"".join(values), priority, self._shares.of(tenant))
        self._leases.add(lease)
        return lease

    def peek(self, key: PrefixKey, *, max_tokens: int | None = None) -> Hit:
        """Return what `acquire` would hit, and change nothing."""
        device, host, _ = self._tree.match_length(key.parts(self.page_size), self._limit(max_tokens))
        return Hit(device // TOKEN_BYTES, host // TOKEN_BYTES)

    def changes(self, key: PrefixKey) -> tuple[int, ...]:
        """Return what differs whenever `peek` might find something else than before. Costs the same for any key."""
        return self._tree.roots.num_changes(key.namespaces)

    def drop(self, namespace: Namespace) -> None:
        """Make everything in and below a namespace unreachable, at once and for what open leases would still add.

        Its slots come back when they are needed or by `tick`, whichever comes first; what leases hold, as they end.
        """
        for lease in self._leases:
            lease._expel(namespace)
        self._removal.drop(namespace)

    def tick(self, now: float) -> None:
        """Do a bounded part of what can wait. Called once for every step, and now and then while idle."""
        if self._removal.has_limbo:
            self._free_packed(self._removal.reap(_REAPED_NODES))

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

    def namespaces(self) -> tuple[Namespace, ...]:
        """Return those that have something in a tier."""
        return tuple(self._tree.roots.spaces)

    def holdings(self, namespace: Namespace) -> Holdings:
        """Return what a namespace has in each tier."""
        space = self._tree.roots.spaces.get(namespace)
        if space is None:
            return Holdings(0, 0)
        return Holdings(space.device_bytes // TOKEN_BYTES, space.host_bytes // TOKEN_BYTES)

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

    def check(self) -> None:
        """Recompute every invariant from scratch; InvariantError says what does not hold. Costs O(everything)."""
        self._slots.check()
        holdings = [lease._holding() for lease in self._leases]
        holdings += [Holding(None, 0, slots, slots, [], True) for slots in self._quarantine()]
        audit(self._tree, self._removal.limbo, self._slots.free_slots(), self.num_slots, holdings)

    def _quarantine(self) -> Sequence[Int32Array]:
        """Slots that nobody owns and that are not free yet."""
        return ()

    def _limit(self, max_tokens: int | None) -> int:
        """The most bytes that may be hit: whole pages."""
        if max_tokens is None:
            return sys.maxsize
        return max(max_tokens, 0) // self.page_size * self.page_size * TOKEN_BYTES

    def _allocate(self, num_slots: int, after: int | None, account: Account) -> Int32Array | None:
        """Return at least `num_slots` slots in whole pages, evicting what is missing, or None and change nothing."""
        wanted = -(-num_slots // self.page_size) * self.page_size
        while self._removal.has_limbo and self._slots.num_free < wanted:
            self._free_packed(self._removal.reap(_REAPED_NODES))
        missing = (wanted - self._slots.num_free) * TOKEN_BYTES
        if missing > 0:
            if missing > self._evictable_for(account):
                return None
            self._free_packed(self._removal.evict(missing, account))
        return self._slots.allocate(wanted, after)

    def _evictable_for(self, claimant: Account) -> int:
        """Bytes of cached values that may be evicted for `claimant`: not locked, and not promised to others."""
        tree = self._tree
        evictable = tree.cached_bytes - tree.locked_bytes
        if tree.queues.alone:
            return evictable
        for account in self._shares.accounts:
            if account is not claimant:
                unlocked = account.device_bytes - account.locked_bytes
                evictable -= unlocked - min(unlocked, max(0, account.device_bytes - account.floor_bytes))
        return evictable

    def _unlock(self, node: Node, expelled: bool) -> None:
        if not expelled:
            self._tree.unlock(node)
            return
        self._free_packed(self._removal.unlock_dropped(node))

    def _free_packed(self, values: list[bytearray]) -> None:
        self._slots.free(np.frombuffer(b"".join(values), _SLOT_DTYPE))


class Lease:
    """One sequence's hold on its prefix and on the slots it computes into. A context manager.

        slots    [ matched | committed ...    | computed or yet to be | spare of the last page )
        owner      tree      tree, or private   private                 private
                             where it was a
                             duplicate

    `slots` never changes for a token that has one: what another lease committed first is a duplicate, and this lease
    goes on with its own copy until its release.
    """

    __slots__ = (
        "_account",
        "_cache",
        "_capacity",
        "_depth",
        "_duplicates",
        "_expelled",
        "_hit_tokens",
        "_namespaces",
        "_node",
        "_num_tokens",
        "_priority",
        "_slot_ids",
    )

    def __init__(
        self,
        cache: PrefixCache,
        namespaces: tuple[Namespace, ...],
        node: Node | None,
        value: bytes,
        priority: int,
        account: Account,
    ) -> None:
        """Made by `PrefixCache.acquire`, which has locked `node`; `value` holds the slots of the path down to it."""
        self._cache: PrefixCache | None = cache
        self._account = account
        self._namespaces = namespaces
        self._priority = priority
        self._node = node
        self._slot_ids = _frombuffer(value, _SLOT_DTYPE)
        # All in tokens, and equal to begin with: the hit, what has a slot, the slots held (whole pages; the array may
        # be longer), and what the locked path covers (whole pages).
        self._hit_tokens = self._num_tokens = self._capacity = self._depth = len(value) // TOKEN_BYTES
        self._duplicates: list[tuple[int, int]] = []  # token ranges above the depth that are private all the same
        self._expelled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    @property
    def hit(self) -> Hit:
        """What was found when the lease was acquired."""
        return Hit(self._hit_tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens that have a slot."""
        return self._num_tokens

    @property
    def num_slots(self) -> int:
        """Slots held, those of a load back under way and the spare ones of a page included."""
        return self._capacity

    @property
    def num_private_slots(self) -> int:
        """Slots held that the cache doesn't have; after its namespace was dropped, all."""
        return self._capacity if self._expelled else sum(last - first for first, last in self._private())

    @property
    def loading(self) -> bool:
        """Whether a load back is under way. Until it ends, nothing may be reserved or committed."""
        return False

    @property
    def gate(self) -> LayerGate | None:
        """Where a forward pass can follow the load back that is under way; None: it has to wait until that ends."""
        return None

    def follow(self) -> None:
        """Count what is being loaded as if it were there, for a forward pass that waits at `gate`.

        Slots can be reserved behind it. Nothing can be committed before `loading` ends; if `num_tokens` is smaller
        then, the load failed, and what was computed behind it is worth nothing.
        """
        raise LeaseError("there is no gate to follow a load through")

    def load_back(self, *, now: float) -> bool:
        """Begin to load what lower tiers have behind the hit, as far as it is worth it and there are slots.

        False: nothing is loaded, and the lease is ready.
        """
        return False

    @property
    def slots(self) -> Int32Array:
        """int32[num_tokens], read-only: the slot of every token held so far, in order."""
        view = self._slot_ids[: self._num_tokens]
        view.flags.writeable = False
        return view

    def reserve(self, num_tokens: int, *, now: float) -> bool:
        """Append slots for the next `num_tokens` tokens, evicting as needed. False: not enough, and nothing changed."""
        cache = self._owner()
        if num_tokens < 0:
            raise LeaseError(f"num_tokens must not be negative, got {num_tokens}")
        missing = self._num_tokens + num_tokens - self._capacity
        if missing > 0:
            last = int(self._slot_ids[self._capacity - 1]) if self._capacity else None
            slots = cache._allocate(missing, last, self._account)
            if slots is None:
                return False
            self._append(slots)
        self._num_tokens += num_tokens
        return True

    def commit(self, key: PrefixKey, *, now: float) -> None:
        """Publish the whole pages of `key`, whose KV is computed and lies in slots[:len(key)].

        `key` continues what was matched or committed before; only what is new in it is looked at. After the namespace
        was dropped this changes nothing.
        """
        cache = self._owner()
        if key.namespaces != self._namespaces:
            raise LeaseError("the key belongs to other namespaces than the lease")
        if len(key) > self._num_tokens:
            raise LeaseError(f"the key has {len(key)} tokens, the lease has slots for {self._num_tokens}")
        if self._expelled:
            return
        depth = len(key) // cache.page_size * cache.page_size
        if depth <= self._depth:
            return
        value = self._slot_ids[self._depth : depth].view(np.uint8).data
        begin = self._depth * TOKEN_BYTES
        parts = key.parts(cache.page_size)
        insertion = cache._tree.insert(self._node, begin, parts, value, now, self._priority, self._account)
        self._node = insertion.node
        self._depth = depth
        for first, last in insertion.duplicates:
            self._duplicates.append((first // TOKEN_BYTES, last // TOKEN_BYTES))

    def release(self) -> None:
        """Let go of the prefix and free what is private. Releasing again is harmless."""
        cache = self._cache
        if cache is None:
            return
        if self._node is not None:
            cache._unlock(self._node, self._expelled)
        for first, last in self._private():
            cache._slots.free(self._slot_ids[first:last])
        cache._leases.discard(self)
        self._cache = None
        self._node = None
        self._num_tokens = self._capacity = self._depth = 0
        self._duplicates = []

    def _owner(self) -> PrefixCache:
        if self._cache is None:
            raise LeaseError("the lease is released")
        return self._cache

    def _private(self) -> list[tuple[int, int]]:
        """Ranges of held slots that no node refers to."""
        return [*self._duplicates, (self._depth, self._capacity)]

    def _append(self, slots: Int32Array) -> None:
        """Put new slots behind those held. A view handed out earlier keeps seeing what it saw."""
        end = self._capacity + len(slots)
        if end > len(self._slot_ids):
            grown = np.empty(end + max(_MIN_ROOM, end // 2), dtype=np.int32)
            grown[: self._capacity] = self._slot_ids[: self._capacity]
            self._slot_ids = grown
        self._slot_ids[self._capacity : end] = slots
        self._capacity = end

    def _expel(self, namespace: Namespace) -> None:
        if namespace in self._namespaces:
            self._expelled = True

    def _holding(self) -> Holding:
        held = self._slot_ids[: self._capacity]
        private = [held[first:last] for first, last in self._private()]
        return Holding(self._node, self._depth, held, np.concatenate(private), self._duplicates, self._expelled)
