"""A small cache of three tiers whose slots hold numbers, and short ways to say what happens to it."""

from collections.abc import Mapping

import numpy as np

from hicache.backing import BackingRules
from hicache.copies.cost import LoadCostConfig, LoadCostModel
from hicache.copies.fake_transfer import ManualTransfer
from hicache.copies.transfer import Ticket
from hicache.events import EventLog
from hicache.fetches import Fetch
from hicache.host import MirrorRules, WriteBack, WritePolicy
from hicache.keys import EXTRA_KEY_BYTES, Namespace, PrefixKey
from hicache.radix import policy
from hicache.radix.naming import PageNames
from hicache.radix.node import Node
from hicache.radix.shares import Share
from hicache.stats import TierStats
from hicache.storage.fake_io import ManualIo
from hicache.storage.io import PageIo
from hicache.storage.memory import MemoryStore
from hicache.tiered import HostTier, StorageTier, TieredCache, TieredLease
from tests.property.tiers import Memories, computed

SEED = b"model"
WHOEVER = Namespace(bytes(EXTRA_KEY_BYTES))
NAME_TOKENS = 4  # of a page of names
NO_MIRRORS_AHEAD = MirrorRules(low_watermark=0.0, high_watermark=0.0, copy_timeout_s=10.0, retry_s=1.0)


class Tiers:
    """A cache, its memories, and a transfer and a store that do what the test says."""

    def __init__(
        self,
        num_slots: int = 32,
        num_host_slots: int = 64,
        *,
        page_size: int = 1,
        write_policy: WritePolicy | None = None,
        rules: MirrorRules = NO_MIRRORS_AHEAD,
        backing: BackingRules | None = None,
        shares: Mapping[str, Share] | None = None,
        store: MemoryStore | None = None,
        io: PageIo | None = None,
        seed: bytes = SEED,
        cost: LoadCostModel | None = None,
        eviction: str = "lru",
    ) -> None:
        self.page_size = page_size
        self.seed = seed
        self.memories = Memories(num_slots, num_host_slots)
        self.transfer = ManualTransfer(self.memories.move)
        self.store = store or MemoryStore(1 << 20)
        self.io = ManualIo(self.store)
        self.names = PageNames(NAME_TOKENS * page_size, seed)
        self.log = EventLog(self.names)
        self.now = 1.0
        self.cache = TieredCache(
            num_slots,
            HostTier(
                num_host_slots,
                self.transfer,
                write_policy or WriteBack(),
                rules,
                cost or LoadCostModel(LoadCostConfig(load_back_threshold=1)),
            ),
            page_size=page_size,
            policy=policy.by_name(eviction),
            shares=shares,
            storage=StorageTier(io or self.io, self.memories, self.names, backing or BackingRules(min_fetch_tokens=1)),
            events=self.log,
        )

    @property
    def stats(self) -> TierStats:
        return self.cache.tier_stats()

    @property
    def copies(self) -> list[Ticket]:
        return self.transfer.pending

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.cache.tick(self.now)
        self.cache.check()

    def settle(self) -> None:
        """Let every copy and every page come to its end."""
        for _ in range(100):
            self.transfer.finish_all()
            self.io.finish_all()
            self.tick()
            if not (self.cache.pending or self.copies or self.io.tasks):
                return
        raise AssertionError(f"{self.cache.pending} copies or pages never end")

    # Requests

    def acquire(self, key: PrefixKey, *, tenant: str = "", fetch: Fetch | None = None) -> TieredLease:
        """Match all but the last token."""
        self.now += 0.01
        lease = self.cache.acquire(key, now=self.now, max_tokens=len(key) - 1, tenant=tenant, prefetched=fetch)
        self.cache.check()
        return lease

    def load(self, key: PrefixKey, *, tenant: str = "", fetch: Fetch | None = None) -> TieredLease:
        """Match, and begin to load back what the host has."""
        lease = self.acquire(key, tenant=tenant, fetch=fetch)
        lease.load_back(now=self.now)
        self.cache.check()
        return lease

    def finish(self, lease: TieredLease, key: PrefixKey) -> None:
        """See that what was found is right, compute the rest, and publish it."""
        found = lease.num_tokens
        self.assert_reads(lease, key)
        assert lease.reserve(len(key) - found, now=self.now)
        self.memories.device[lease.slots[found:]] = computed(key, len(key), self.page_size, self.seed)[found:]
        lease.commit(key, now=self.now)
        self.cache.check()

    def start(self, key: PrefixKey, *, tenant: str = "") -> TieredLease:
        """A request up to the end of its prompt; whatever has to be loaded is loaded at once."""
        lease = self.load(key, tenant=tenant)
        while lease.loading:
            self.transfer.finish_all()
            self.tick()
        self.finish(lease, key)
        return lease

    def serve(self, *keys: PrefixKey, tenant: str = "") -> None:
        for key in keys:
            self.start(key, tenant=tenant).release()
            self.cache.check()

    def assert_reads(self, lease: TieredLease, key: PrefixKey) -> None:
        """Every slot of the lease holds what was computed for this prefix of this namespace."""
        found = self.memories.device[lease.slots]
        assert np.array_equal(found, computed(key, lease.num_tokens, self.page_size, self.seed))

    # Bringing things about

    def mirror_everything(self) -> None:
        """Everything gets its copy on the host, and its pages in storage."""
        self.cache.flush(now=self.now)
        self.settle()

    def take_all_slots(self) -> TieredLease:
        """Somebody takes the whole device: whatever is not locked leaves it."""
        stats = self.cache.stats()
        lease = self.cache.acquire(PrefixKey.of(WHOEVER, [1]), now=self.now, max_tokens=0)
        assert lease.reserve(stats.num_slots - stats.locked_slots - stats.private_slots, now=self.now)
        self.cache.check()
        return lease

    def empty_device(self) -> None:
        self.take_all_slots().release()

    def to_host(self, *keys: PrefixKey) -> None:
        """Compute prefixes, and move them from the device to the host."""
        self.serve(*keys)
        self.mirror_everything()
        self.empty_device()

    def fetch(self, key: PrefixKey, *, tenant: str = "") -> Fetch | None:
        self.now += 0.01
        return self.cache.prefetch(key, now=self.now, max_tokens=len(key) - 1, tenant=tenant)

    def node_of(self, key: PrefixKey) -> Node:
        """The node that ends where the key does."""
        node, depth = self.cache._tree.walk(key.parts(self.page_size), len(key) * 4)
        assert node is not None
        assert depth == len(key) * 4
        return node
