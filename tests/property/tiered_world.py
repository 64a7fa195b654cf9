"""A cache of three tiers with all that goes on around it: requests, copies, a store, time, and what can go wrong.

Every operation takes its choices from a `random.Random`. What holds after each of them is `verify`.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hicache.backing import BackingRules
from hicache.copies.cost import LoadCostConfig, LoadCostModel
from hicache.copies.fake_transfer import Chances, InstantTransfer, ManualTransfer, SeededTransfer
from hicache.events import EventLog
from hicache.fetches import Fetch
from hicache.host import MirrorRules, WriteBack, WriteThrough, WriteThroughSelective
from hicache.keys import PrefixKey, Segment, page_hashes
from hicache.pages import group_of
from hicache.radix import policy
from hicache.radix.naming import PageNames
from hicache.radix.shares import Share
from hicache.storage.fake_io import InstantIo, ManualIo
from hicache.storage.memory import MemoryStore
from hicache.tiered import HostTier, StorageTier, TieredCache, TieredLease
from tests.property.tiers import Contents, Memories, Reader, WatchedStore, computed, key_of, walked
from tests.unit.hicache.support import namespace

TENANTS = ("a", "b", "public")
WRITE_POLICIES = (WriteBack, WriteThrough, WriteThroughSelective)
COPIES = ("manual", "seeded", "instant")
STORES = ("manual", "instant", "instant", "none")

_NUM_PAGES, _NUM_HOST_PAGES = 20, 32
_PAGES_OF_A_NAME = 4  # of the tree, in a page of names
_MOST_PAGES = 16  # of one key
_SEED = b"model"
_MOST_ROUNDS = 1000
_SHARES = {"a": Share(floor=0.25, weight=1.0), "b": Share(floor=0.15, weight=2.0)}


@dataclass(frozen=True, slots=True)
class Setting:
    """What kind of cache it is, and what is around it."""

    page_size: int = 1
    policy_name: str = "lru"
    write_policy: Callable[[], WriteBack | WriteThrough | WriteThroughSelective] = WriteBack
    copies: str = "manual"
    store: str = "manual"
    seed: int = 0
    shares: bool = False
    # Where a page of names straddles a barrier, one name may stand for what was computed in several namespaces. Then
    # barriers lie anywhere, and what is computed depends on tokens alone.
    aligned: bool = True
    calm: bool = False  # nothing fails, and nothing takes for ever
    log_capacity: int = 10_000


@dataclass(eq=False)
class Running:
    """A sequence that holds a lease: what it asked for, and how far it is computed."""

    lease: TieredLease
    tenant: str
    key: PrefixKey
    computed: int
    started: bool = False


class World:
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.page_size = page_size = setting.page_size
        self.running: list[Running] = []
        self.fetches: list[tuple[PrefixKey, Fetch]] = []
        self.asked: list[PrefixKey] = []
        self.now = 0.0
        self.num_operations = 0
        self.fetched_tokens = 0  # by requests that used them
        self.names = PageNames(_PAGES_OF_A_NAME * page_size, _SEED)
        self.store = WatchedStore(MemoryStore(1 << 20))
        self._build()

    def _build(self) -> None:
        """Make a cache that knows nothing yet; the store is as it was."""
        setting = self.setting
        self.memories = Memories(_NUM_PAGES * self.page_size, _NUM_HOST_PAGES * self.page_size)
        self.transfer = self._transfer()
        self.io: ManualIo | InstantIo | None = None
        if setting.store != "none":
            self.io = ManualIo(self.store) if setting.store == "manual" else InstantIo(self.store)
        log = EventLog(self.names, capacity=setting.log_capacity)
        self.cache = TieredCache(
            _NUM_PAGES * self.page_size,
            self._host_tier(),
            page_size=self.page_size,
            policy=policy.by_name(setting.policy_name),
            shares=_SHARES if setting.shares else None,
            storage=self._storage_tier(),
            events=log,
        )
        self.reader = Reader(log, self.cache)

    def _transfer(self) -> ManualTransfer | SeededTransfer | InstantTransfer:
        if self.setting.copies == "manual":
            return ManualTransfer(self.memories.move)
        if self.setting.copies == "seeded":
            chances = Chances(fails=0.0, stalls=0.0) if self.setting.calm else None
            return SeededTransfer(self.setting.seed, self.memories.move, chances=chances)
        return InstantTransfer(self.memories.move)

    def _host_tier(self) -> HostTier:
        rules = MirrorRules(
            low_watermark=0.3,
            high_watermark=0.6,
            max_flying_tokens=12 * self.page_size,
            max_copy_tokens=5 * self.page_size,
            copy_timeout_s=30,
            retry_s=3,
        )
        cost = LoadCostModel(LoadCostConfig(load_back_threshold=1))
        return HostTier(_NUM_HOST_PAGES * self.page_size, self.transfer, self.setting.write_policy(), rules, cost)

    def _storage_tier(self) -> StorageTier | None:
        if self.io is None:
            return None
        rules = BackingRules(
            max_fetch_bytes=5 * self.memories.page_bytes(self.names.page_size),
            fetch_timeout_s=20,
            min_fetch_tokens=1,
            max_save_tokens=4 * self.names.page_size,
        )
        return StorageTier(self.io, self.memories, self.names, rules)

    # Requests

    def acquire(self, chance: random.Random) -> None:
        """A request begins, with or without a look at what storage and the host have."""
        if len(self.running) < 5:
            key = self._draw_key(chance)
            self._open(key, chance.choice([None, chance.randrange(len(key) + 1)]), chance, chance.random() < 0.7)

    def serve(self, chance: random.Random) -> None:
        """A whole request at once, as the engine runs it; most of what is cached comes from here."""
        key = self._draw_key(chance)
        sequence = self._open(key, len(key) - 1, chance, loads=True)
        if not sequence.lease.loading:
            self._compute(sequence, len(key) - sequence.lease.num_tokens, commits=True)
        if len(self.running) > 5 or chance.random() < 0.8:
            self.running.remove(sequence)
            sequence.lease.release()

    def compute(self, chance: random.Random) -> None:
        ready = [sequence for sequence in self.running if not sequence.lease.loading]
        if ready:
            num_tokens = chance.randrange(6) * self.page_size + chance.randrange(self.page_size)
            self._compute(chance.choice(ready), num_tokens, commits=chance.random() < 0.7)

    def load_back(self, chance: random.Random) -> None:
        fresh = [sequence for sequence in self.running if not sequence.started and not sequence.lease.loading]
        if fresh:
            chance.choice(fresh).lease.load_back(now=self.now)

    def release(self, chance: random.Random) -> None:
        """At any time, while it loads too."""
        if self.running:
            sequence = self.running.pop(chance.randrange(len(self.running)))
            sequence.lease.release()
            sequence.lease.release()

    # Storage

    def prefetch(self, chance: random.Random) -> None:
        if len(self.fetches) < 4:
            key = self._draw_key(chance)
            fetch = self.cache.prefetch(key, now=self.now, max_tokens=chance.choice([None, len(key) - 1]))
            if fetch is not None:
                self.fetches.append((key, fetch))

    def end_fetch(self, chance: random.Random) -> None:
        """The request begins, whether its pages have come or not; or it never does."""
        if not self.fetches:
            return
        key, fetch = self.fetches.pop(chance.randrange(len(self.fetches)))
        for _ in range(chance.randrange(6)):
            self.store_works(chance)
            self.cache.tick(self.now)
        begins = chance.random() < 0.8
        if fetch.pending or not begins:
            fetch.cancel()
            fetch.cancel()
        if begins:
            self._open(key, None, chance, loads=True, fetch=fetch)

    def store_works(self, chance: random.Random) -> None:
        if not isinstance(self.io, ManualIo) or not self.io.tasks:
            return
        task = chance.choice(self.io.tasks[:4])
        end = chance.random()
        if end < 0.1 and not self.setting.calm:
            self.io.fail("the store had enough", task)
        elif end < 0.3:
            self.io.advance(task)
        else:
            self.io.finish(task)

    def store_fails(self, chance: random.Random) -> None:
        if self.io is not None and not self.setting.calm and (self.store.away or chance.random() < 0.3):
            if self.store.away or chance.random() < 0.6:
                self.store.away = False
                self.store.lost.add(chance.choice([*self.store.expected, b""]))
            else:
                self.store.away = True

    # Time and copies

    def tick(self, chance: random.Random) -> None:
        self.now += chance.choice([0.0, 0.1, 1.0, 1.0, 4.0, 0.5 if self.setting.calm else 40.0])
        self.cache.tick(self.now)

    def copies_go_on(self, chance: random.Random) -> None:
        if isinstance(self.transfer, SeededTransfer):
            for _ in range(chance.randrange(4)):
                self.transfer.advance()
        elif isinstance(self.transfer, ManualTransfer) and self.transfer.pending:
            ticket = chance.choice(self.transfer.pending)
            end = chance.random()
            if end < 0.15:
                self.transfer.begin(ticket)
            elif end < 0.8 or self.setting.calm:
                self.transfer.finish(ticket)
            else:
                self.transfer.fail(ticket, torn=chance.random() < 0.5)
        if chance.random() < 0.5:
            self.cache.tick(self.now)

    # Others

    def drop(self, chance: random.Random) -> None:
        if chance.random() < 0.25:
            self.cache.drop(namespace(chance.choice(TENANTS)))
            self.reap_little(chance)

    def promise(self, chance: random.Random) -> None:
        """A tenant's share changes, or is as configured again."""
        if chance.random() < 0.4:
            num_slots = chance.choice([0, 0, 1, 3, 8, _NUM_PAGES]) * self.page_size
            promised = self.cache.set_share(chance.choice(TENANTS[:2]), num_slots, chance.choice([0.5, 1.0, 3.0]))
            assert promised <= num_slots or not num_slots

    def reap_little(self, chance: random.Random) -> None:
        """What was dropped is freed bit by bit; here in smaller bits than `tick` does it."""
        for _ in range(chance.randrange(1, 4)):
            self.cache._slots.free_packed(self.cache._removal.reap(1))

    def prepare(self, chance: random.Random) -> None:
        self.cache.prepare(chance.randrange(_NUM_PAGES) * self.page_size, now=self.now)

    def flush(self, chance: random.Random) -> None:
        if chance.random() < 0.3:
            self.cache.flush(now=self.now)

    def miss_events(self, chance: random.Random) -> None:
        if chance.random() < 0.3:
            self.reader.resync()

    def restart(self, chance: random.Random) -> None:
        """Another worker, which shares the store."""
        if chance.random() < 0.3:
            self.let_go()
            self._build()

    def anything(self, chance: random.Random) -> None:
        """One operation, those that a busy cache sees most often more often."""
        faults = (self.store_fails, self.drop, self.reap_little, self.miss_events, self.restart)
        seldom = (*faults, self.acquire, self.load_back, self.prepare, self.flush, self.promise)
        often = (self.serve, self.compute, self.release, self.prefetch, self.end_fetch)
        busy = (self.serve, self.tick, self.copies_go_on, self.store_works)
        chance.choice([*seldom, *often, *often, *busy, *busy, *busy, *busy])(chance)

    # What holds after each

    def verify(self) -> None:
        self.num_operations += 1
        self.cache.check()
        for sequence in self.running:
            self._verify_sequence(sequence)
        self._verify_nodes()
        assert not self.store.wrong, "a page was saved under a name that is not its own"
        self.reader.follow()
        assert self.reader.held == walked(self.cache, self.names)
        assert self.cache.events is not None
        assert self.cache.events.digest() == self.reader.digest() == self.cache.snapshot().digest()
        self._verify_saved()

    def _verify_saved(self) -> None:
        """Whoever heard of all that was saved has heard of each page, under the namespace that it belongs to."""
        groups = {(group_of(namespace, _SEED), page) for namespace, page in self.reader.saved}
        assert groups <= {(group, page) for page, (group, _) in self.store.expected.items()}
        if not self.reader.resyncs:
            assert self.reader.saved.total() == self.cache.tier_stats().saved_pages

    def _verify_sequence(self, sequence: Running) -> None:
        """It reads what was computed for it."""
        if not sequence.started:
            sequence.computed = sequence.lease.num_tokens
            assert sequence.lease.hit.total == sequence.computed
        assert sequence.lease.num_tokens == sequence.computed
        read = self.memories.device[sequence.lease.slots]
        assert np.array_equal(read, self._content(sequence.key, sequence.computed))

    def _verify_nodes(self) -> None:
        """Every node has in each tier what was computed for it."""
        pending = list(self.cache._tree.roots.tops.values())
        while pending:
            node = pending.pop()
            pending.extend(node.children.values())
            key = key_of(node)
            assert key is not None
            expected = self._content(key, len(key))[len(key) - node.num_tokens :]
            if node.value:
                assert np.array_equal(self.memories.device[np.frombuffer(node.value, np.int32)], expected)
            if node.mirrored:
                assert np.array_equal(self.memories.host[np.frombuffer(node.host_value, np.int32)], expected)

    def end(self) -> None:
        """Let everybody go, and see to it that nothing is left."""
        self.let_go()
        self.store.away = False
        for name in TENANTS:
            self.cache.drop(namespace(name))
        self._let_all_end()
        self.verify()
        stats = self.cache.tier_stats()
        assert self.cache.num_free_slots == self.cache.num_slots
        assert stats.host_free_slots == stats.host_slots
        assert stats.flying_tokens == stats.settled_slots == 0
        assert self.store.stats().num_pages == 0

    def let_go(self) -> None:
        """Every request ends, and everything that is under way."""
        for sequence in self.running:
            sequence.lease.release()
        for _, fetch in self.fetches:
            fetch.cancel()
        self.running.clear()
        self.fetches.clear()
        self._let_all_end()
        self.verify()
        assert self.cache.tier_stats().fetch_reserved_bytes == 0

    def _let_all_end(self) -> None:
        for _ in range(_MOST_ROUNDS):
            if isinstance(self.transfer, ManualTransfer):
                self.transfer.finish_all()
            elif isinstance(self.transfer, SeededTransfer):
                self.transfer.drain()
            if isinstance(self.io, ManualIo):
                self.io.finish_all()
            self.now += 0.1
            self.cache.tick(self.now)
            if not self.cache.pending:
                return
        raise AssertionError(f"{self.cache.pending} copies or pages never end")

    # Parts of the operations

    def _draw_key(self, chance: random.Random) -> PrefixKey:
        """A key that often goes on from, or parts from, one that was asked for before."""
        tokens = [token for _ in range(chance.randint(1, 10)) for token in [chance.randrange(2)] * self.page_size]
        tokens = tokens[: len(tokens) - chance.randrange(self.page_size)]
        if self.asked and chance.random() < 0.75:
            earlier = chance.choice(self.asked[-12:])
            barrier = sum(len(segment) for segment in earlier.segments[:-1])
            key = earlier.prefix(chance.randint(barrier, len(earlier))).extend(tokens)
            key = key.prefix(min(len(key), max(barrier + 1, _MOST_PAGES * self.page_size)))
        else:
            name = chance.choice(TENANTS)
            key = PrefixKey.of(namespace(name), tokens)
            if name != "public" and chance.random() < 0.5:
                size = self.names.page_size if self.setting.aligned else chance.randrange(6 * self.page_size)
                public = Segment(namespace("public"), [chance.randrange(2)] * size)
                key = PrefixKey((public, Segment(namespace(name), tokens)))
        self.asked.append(key)
        self._expect_pages(key)
        return key

    def _expect_pages(self, key: PrefixKey) -> None:
        """Tell the store what the pages of a key hold."""
        size = self.names.page_size
        contents = self._content(key, len(key))
        owners = [owner for owner, _, num_bytes in key.parts(size) for _ in range(num_bytes // self.names.page_bytes)]
        for index, name in enumerate(page_hashes(key, size, _SEED)):
            content = contents[index * size : (index + 1) * size].tobytes()
            self.store.expected[name] = (group_of(owners[index], _SEED), content)

    def _content(self, key: PrefixKey, num_tokens: int) -> Contents:
        if not self.setting.aligned:
            key = PrefixKey.of(namespace("anybody"), key.token_ids)
        return computed(key, num_tokens, self.page_size)

    def _open(
        self, key: PrefixKey, max_tokens: int | None, chance: random.Random, loads: bool, fetch: Fetch | None = None
    ) -> Running:
        self.now += 0.01
        tenant = next(name for name in TENANTS if namespace(name) == key.namespaces[-1])
        priority = chance.randrange(3)
        expected = self.cache.peek(key, max_tokens=max_tokens)
        assert self.cache.is_loading(key, max_tokens=max_tokens) <= (expected.host > 0)
        lease = self.cache.acquire(
            key, now=self.now, max_tokens=max_tokens, priority=priority, tenant=tenant, prefetched=fetch
        )
        assert lease.hit.total == expected.device
        available = lease._on_host.depth // 4 - expected.device if lease._on_host is not None else 0
        assert available == expected.host
        sequence = Running(lease, tenant, key, lease.num_tokens)
        self.running.append(sequence)
        if loads:
            lease.load_back(now=self.now)
        return sequence

    def _compute(self, sequence: Running, num_tokens: int, *, commits: bool) -> None:
        """Reserve slots and compute into them, or see to it that there really was no room."""
        lease = sequence.lease
        if not sequence.started:
            sequence.started = True
            sequence.computed = lease.num_tokens
        self.now += 0.01
        before = sequence.computed
        if not lease.reserve(num_tokens, now=self.now):
            missing = num_tokens - (lease.num_slots - before)
            assert missing > self.cache.num_available_slots(sequence.tenant) - self.page_size
            return
        sequence.computed = lease.num_tokens
        if lease.num_tokens > len(sequence.key):
            sequence.key = sequence.key.extend([0] * (lease.num_tokens - len(sequence.key)))
            self._expect_pages(sequence.key)
        contents = self._content(sequence.key, lease.num_tokens)
        self.memories.device[lease.slots[before:]] = contents[before:]
        if commits:
            lease.commit(sequence.key.prefix(lease.num_tokens), now=self.now)
