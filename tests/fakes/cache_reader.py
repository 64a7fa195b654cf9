"""Follows what a worker tells of its cache, by the book, and says when it is lost. A gateway without anything else."""

from collections import Counter

from radixgate.v1 import worker_pb2

_NAME_BYTES = 16

# Tier, extra key, revision of the adapter, name: one page of one namespace in one tier.
Page = tuple[int, bytes, str, bytes]


class CacheReader:
    """Reads every message of one link, in order.

    While `is_lost` nothing that it holds means anything, and it needs a snapshot; `gaps` counts how often it was.
    """

    def __init__(self) -> None:
        self.held: Counter[Page] = Counter()
        self.saved: set[Page] = set()  # in storage, as far as it was told
        self.tiers_told_of: set[int] = set()
        self.seq = -1  # -1: has not begun
        self.is_lost = True
        self.gaps = 0
        self.snapshots = 0
        self.num_events = 0
        self.digests: list[worker_pb2.CacheDigest] = []
        self.agreed = 0  # digests that said what it holds
        self._parts: list[worker_pb2.CacheSnapshot] = []

    def read(self, message: worker_pb2.ConnectResponse) -> None:
        for event in message.cache_events:
            self._event(event)
        if message.HasField("snapshot"):
            assert not message.cache_events, "events beside a part of a snapshot"
            self._part(message.snapshot)
        if message.HasField("digest"):
            self._digest(message.digest)

    @property
    def digest(self) -> worker_pb2.CacheDigest:
        """What the worker must say if it holds what this holds."""
        return worker_pb2.CacheDigest(
            seq=self.seq,
            device=self._digest_of(worker_pb2.CACHE_TIER_DEVICE),
            host=self._digest_of(worker_pb2.CACHE_TIER_HOST),
        )

    def _digest_of(self, tier: int) -> worker_pb2.TierDigest:
        counts = [(page[3], count) for page, count in self.held.items() if page[0] == tier]
        total = sum(int.from_bytes(name, "little") * count for name, count in counts) % 2**128
        return worker_pb2.TierDigest(num_pages=sum(count for _, count in counts), sum=total.to_bytes(16, "little"))

    def _lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.gaps += 1

    def _event(self, event: worker_pb2.CacheEvent) -> None:
        assert event.seq > self.seq, "an event that was told before, or is in the snapshot"
        self.tiers_told_of.add(event.tier)
        self.num_events += 1
        if event.seq != self.seq + 1:
            self._lose()
        self.seq = event.seq
        if self.is_lost:
            return
        change = event.change
        tier = worker_pb2.CACHE_TIER_DEVICE if change == worker_pb2.CACHE_CHANGE_MOVED else event.tier
        pages = _pages(tier, event.namespace, event.names)
        if event.tier == worker_pb2.CACHE_TIER_STORAGE:
            assert change == worker_pb2.CACHE_CHANGE_STORED
            self.saved.update(pages)
        elif change == worker_pb2.CACHE_CHANGE_STORED:
            self.held.update(pages)
        else:
            gone = Counter(pages)
            assert gone <= self.held, "pages left that were not there"
            self.held -= gone

    def _part(self, part: worker_pb2.CacheSnapshot) -> None:
        if part.part == 0:
            self._parts = []
        assert part.part == len(self._parts), "a part is missing"
        assert all(part.seq == other.seq for other in self._parts), "parts of two snapshots"
        self._parts.append(part)
        if not part.last:
            return
        assert part.seq >= self.seq, "a snapshot of what was before"
        holdings = [holding for each in self._parts for holding in each.holdings]
        self.held = Counter(page for each in holdings for page in _pages(each.tier, each.namespace, each.names))
        self.seq, self.is_lost, self._parts = part.seq, False, []
        self.snapshots += 1

    def _digest(self, digest: worker_pb2.CacheDigest) -> None:
        self.digests.append(digest)
        assert digest.seq >= self.seq
        if self.seq == -1 and digest.seq == 0:
            self.seq, self.is_lost = 0, False  # nothing was ever there
        if digest.seq > self.seq:
            self._lose()
            self.seq = digest.seq
        if not self.is_lost:
            assert digest == self.digest, "the worker holds something else"
            self.agreed += 1


def _pages(tier: int, namespace: worker_pb2.CacheNamespace, names: bytes) -> list[Page]:
    assert len(names) % _NAME_BYTES == 0
    return [
        (tier, namespace.extra_key, namespace.adapter_revision, names[start : start + _NAME_BYTES])
        for start in range(0, len(names), _NAME_BYTES)
    ]
