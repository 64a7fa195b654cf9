"""An engine over a cache of three tiers whose copies and store do what the test says."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from hicache.backing import BackingRules
from hicache.cache import PrefixCache
from hicache.copies.cost import LoadCostConfig, LoadCostModel
from hicache.copies.fake_transfer import Chances, CopyContent, ManualTransfer, SeededTransfer
from hicache.copies.transfer import Direction, Ticket
from hicache.host import MirrorRules, WriteBack, WritePolicy
from hicache.keys import EXTRA_KEY_BYTES, Namespace, PrefixKey
from hicache.radix.naming import PageNames
from hicache.radix.shares import Share
from hicache.storage.fake_io import ManualIo
from hicache.storage.memory import MemoryStore
from hicache.storage.store import PageStore
from hicache.tiered import HostTier, StorageTier, TieredCache
from tests.unit.worker.engine.harness import Rig
from worker.config import EngineConfig
from worker.engine.fake import FakeExecutor, HostContents

COPY_TIMEOUT_S: Final = 30.0  # a step of the rig takes a second
FETCH_TIMEOUT_S: Final = 20.0
NAME_TOKENS: Final = 4  # of a page in storage, in pages of the tree

_NOBODY = Namespace(b"nobody" + bytes(EXTRA_KEY_BYTES - 6))
RULES = MirrorRules(
    low_watermark=0.3,
    high_watermark=0.6,
    max_flying_tokens=512,
    max_copy_tokens=48,
    copy_timeout_s=COPY_TIMEOUT_S,
    retry_s=2.0,
)


class TieredRig(Rig):
    """A rig whose cache has tiers. Copies end by hand, unless there is a `seed`; so do the store's tasks."""

    def __init__(
        self,
        num_slots: int = 200,
        num_host_slots: int = 400,
        page_size: int = 1,
        *,
        config: EngineConfig | None = None,
        shares: Mapping[str, Share] | None = None,
        store: PageStore | None = None,
        write_policy: WritePolicy | None = None,
        rules: MirrorRules = RULES,
        max_fetch_pages: int = 1000,
        fetch_timeout_s: float = FETCH_TIMEOUT_S,
        seed: int | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.host_slots = num_host_slots
        self.shares = shares
        self.rules = rules
        self.write_policy = write_policy or WriteBack()
        self.max_fetch_pages = max_fetch_pages
        self.fetch_timeout_s = fetch_timeout_s
        self.seed = seed
        self.on_done: Callable[[], object] = lambda: None
        self.io = ManualIo(store or MemoryStore(1 << 24), on_done=self._ended)
        self.transfer: ManualTransfer | SeededTransfer
        self.tiers: TieredCache
        super().__init__(
            num_slots, page_size, config=config, cache=lambda executor: self._cache(executor, page_size), clock=clock
        )

    def _cache(self, executor: FakeExecutor, page_size: int) -> PrefixCache:
        host = HostContents(executor, self.host_slots)
        self.transfer = self._transfer(host.copy)
        names = PageNames(NAME_TOKENS * page_size, b"model")
        backing = BackingRules(
            max_fetch_bytes=self.max_fetch_pages * host.page_bytes(names.page_size),
            fetch_timeout_s=self.fetch_timeout_s,
            min_fetch_tokens=1,
        )
        cost = LoadCostModel(LoadCostConfig(load_back_threshold=1))
        self.tiers = TieredCache(
            len(executor.contents),
            HostTier(self.host_slots, self.transfer, self.write_policy, self.rules, cost),
            page_size=page_size,
            shares=self.shares,
            storage=StorageTier(self.io, host, names, backing),
        )
        return self.tiers

    def _transfer(self, copy_content: CopyContent) -> ManualTransfer | SeededTransfer:
        if self.seed is not None:
            return SeededTransfer(self.seed, copy_content, chances=Chances(gates=0.5), on_done=self._ended)
        return ManualTransfer(copy_content, on_done=self._ended)

    def _ended(self) -> None:
        self.on_done()

    @property
    def loads(self) -> list[Ticket]:
        """Loads under way, the oldest first."""
        return [ticket for ticket in self.transfer.pending if ticket.copy.direction is Direction.LOAD]

    def end_copies(self) -> None:
        """Every copy under way ends, well unless the seed says otherwise."""
        if isinstance(self.transfer, ManualTransfer):
            self.transfer.finish_all()
        else:
            self.transfer.drain()

    def end_load(self, *, well: bool = True) -> None:
        """The oldest load ends, or fails with half of it written."""
        assert isinstance(self.transfer, ManualTransfer)
        if well:
            self.transfer.finish(self.loads[0])
        else:
            self.transfer.fail(self.loads[0], torn=True)

    def settle(self) -> None:
        """Without a step: copies and pages end until nothing is under way any more."""
        for _ in range(1000):
            self.end_copies()
            self.io.finish_all()
            self.now += 1.0
            self.engine.idle(self.now)
            self.engine.check()
            if not (self.engine.pending or self.transfer.pending or self.io.tasks):
                return
        raise AssertionError(f"{self.engine.pending} copies or pages never end")

    def serve_all(self) -> None:
        """Run until every sequence has ended, while every copy and page comes at once."""
        for _ in range(10_000):
            self.end_copies()
            self.io.finish_all()
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError(f"still at work: {self.engine.load()}")

    def save(self) -> None:
        """Nobody runs: what the device has is copied to the host and to storage, too."""
        self.engine.flush(self.now)
        self.settle()

    def to_host(self) -> None:
        """Nobody runs: what the device has is on the host afterwards, and in storage."""
        self.save()
        self._empty_device()

    def assert_nothing_is_left(self) -> None:
        """Nothing is held, and nothing under way or promised to anybody."""
        self.assert_nothing_is_held()
        stats = self.tiers.tier_stats()
        assert self.engine.pending == 0
        assert self.tiers.stats().open_leases == 0
        assert stats.fetch_reserved_bytes == 0
        assert stats.flying_tokens == 0
        assert stats.host_free_slots + stats.host_cached_slots == stats.host_slots

    def _empty_device(self) -> None:
        with self.tiers.acquire(PrefixKey.of(_NOBODY, np.array([1], np.int32)), now=self.now, max_tokens=0) as lease:
            assert lease.reserve(self.tiers.num_slots, now=self.now)
