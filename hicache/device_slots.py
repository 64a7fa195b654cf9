"""The slots of the device: which are free, and what may be evicted for whom. No leases, no copies."""

import numpy as np

from hicache.keys import TOKEN_BYTES, Int32Array
from hicache.radix.node import Account, Node
from hicache.radix.removal import Removal
from hicache.radix.shares import Shares
from hicache.radix.tree import RadixTree
from hicache.slots import SlotAllocator

_REAPED_NODES = 256  # of a dropped namespace, looked at in one go


class DeviceSlots:
    """Hands out slots, and takes them back: from leases, and from nodes that leave the tree."""

    def __init__(self, num_slots: int, page_size: int, tree: RadixTree, removal: Removal, shares: Shares) -> None:
        self.num_slots = num_slots
        self.page_size = page_size
        self._slots = SlotAllocator(num_slots, page_size)
        self._tree = tree
        self._removal = removal
        self._shares = shares

    @property
    def num_free(self) -> int:
        return self._slots.num_free

    def num_available(self, tenant: str) -> int:
        """Free ones, and those that can be evicted for a tenant."""
        return self._slots.num_free + self._evictable_for(self._shares.of(tenant)) // TOKEN_BYTES

    def allocate(self, num_slots: int, after: int | None, tenant: str) -> Int32Array | None:
        """Return at least `num_slots` slots in whole pages, evicting what is missing, or None and change nothing."""
        wanted = -(-num_slots // self.page_size) * self.page_size
        while self._removal.has_limbo and self._slots.num_free < wanted:
            self.reap()
        missing = (wanted - self._slots.num_free) * TOKEN_BYTES
        if missing > 0:
            account = self._shares.of(tenant)
            if missing > self._evictable_for(account):
                return None
            self.free_packed(self._removal.evict(missing, account))
        return self._slots.allocate(wanted, after)

    def free(self, slots: Int32Array) -> None:
        self._slots.free(slots)

    def reap(self) -> None:
        """Free what was dropped, some of it."""
        self.free_packed(self._removal.reap(_REAPED_NODES))

    def reap_all(self) -> None:
        """Free all that was dropped."""
        while self._removal.has_limbo:
            self.reap()

    def unlock(self, node: Node, expelled: bool) -> None:
        """A lease on a node ends; of one that is `expelled`, anything above it may have been dropped."""
        if expelled:
            self.free_packed(self._removal.unlock_dropped(node))
        else:
            self._tree.unlock(node)

    def free_slots(self) -> Int32Array:
        return self._slots.free_slots()

    def check(self) -> None:
        self._slots.check()

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

    def free_packed(self, values: list[bytearray]) -> None:
        self._slots.free(np.frombuffer(b"".join(values), np.dtype(np.int32)))
