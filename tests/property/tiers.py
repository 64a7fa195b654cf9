"""What lies in the slots of every tier, and who reads the event log: beside a cache, for tests of its tiers.

A slot holds one number, which stands for what a model would have computed there: for exactly that namespace and all
tokens up to that place. Whoever reads another number reads somebody else's slot.
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hicache.copies.transfer import Copy, Direction
from hicache.events import CacheDigest, CacheEvent, EventKind, EventLog, Snapshot, TierDigest
from hicache.keys import PAGE_HASH_BYTES, TOKEN_DTYPE, Int32Array, Namespace, PrefixKey, Segment, page_hashes
from hicache.radix.naming import PageNames
from hicache.radix.node import Node
from hicache.storage.store import PageName, PageStore, StoreStats, StoreUnavailableError
from hicache.tiered import TieredCache

Contents = NDArray[np.int64]

# One page of one namespace in one tier.
Place = tuple[str, Namespace, bytes]


class Memories:
    """Device and host memory: one number for each slot."""

    def __init__(self, num_slots: int, num_host_slots: int) -> None:
        self.device: Contents = np.zeros(num_slots, dtype=np.int64)
        self.host: Contents = np.zeros(num_host_slots, dtype=np.int64)

    def move(self, copy: Copy) -> None:
        if copy.direction is Direction.MIRROR:
            self.host[copy.host_slots] = self.device[copy.device_slots]
        else:
            self.device[copy.device_slots] = self.host[copy.host_slots]

    def page_bytes(self, num_tokens: int) -> int:
        return 8 * num_tokens

    def read_page(self, host_slots: Int32Array) -> bytes:
        return self.host[host_slots].tobytes()

    def write_page(self, host_slots: Int32Array, page: bytes) -> None:
        self.host[host_slots] = np.frombuffer(page, dtype=np.int64)


def computed(key: PrefixKey, num_tokens: int, page_size: int, seed: bytes = b"") -> Contents:
    """What a model computes for the first tokens of a key, each after the namespaces and tokens up to it."""
    values: list[int] = []
    state = seed
    barriers = _barriers(key, page_size)
    for index, token in enumerate(key.token_ids[:num_tokens].tolist()):
        own = barriers.get(index, b"")
        state = blake2b(state + own + token.to_bytes(4, "little"), digest_size=8).digest()
        values.append(int.from_bytes(state, "little", signed=True))
    return np.array(values, dtype=np.int64)


def _barriers(key: PrefixKey, page_size: int) -> dict[int, bytes]:
    """Where which namespace begins, in tokens; a page that straddles a barrier belongs to what lies behind it."""
    begins: dict[int, bytes] = {}
    start = 0
    for segment in key.segments:
        begins[start // page_size * page_size] = segment.namespace.encode()
        start += len(segment)
    return begins


class WatchedStore:
    """A store that is away while `away`, loses what it is told to, and knows what every page must hold.

    `expected` says for each page's name what its group is and what lies in it. `wrong` are pages that came otherwise.
    """

    name = "watched"

    def __init__(self, store: PageStore) -> None:
        self._store = store
        self.away = False
        self.lost: set[bytes] = set()
        self.expected: dict[bytes, tuple[bytes, bytes]] = {}
        self.wrong: list[PageName] = []

    def put(self, pages: Sequence[tuple[PageName, bytes]]) -> int:
        self._reach()
        self.wrong += [name for name, content in pages if self.expected.get(name.page) != (name.group, content)]
        self.lost.difference_update(name.page for name, _ in pages)
        return self._store.put(pages)

    def get(self, names: Sequence[PageName]) -> list[bytes | None]:
        self._reach()
        contents = self._store.get(names)
        return [None if name.page in self.lost else content for name, content in zip(names, contents, strict=True)]

    def contains(self, names: Sequence[PageName]) -> list[bool]:
        """What is lost is missed only by who reads it."""
        self._reach()
        return self._store.contains(names)

    def remove_group(self, group: bytes) -> int:
        self._reach()
        return self._store.remove_group(group)

    def stats(self) -> StoreStats:
        return self._store.stats()

    def close(self) -> None:
        self._store.close()

    def _reach(self) -> None:
        if self.away:
            raise StoreUnavailableError("the store is away")


class HasSnapshots(Protocol):
    def snapshot(self) -> Snapshot: ...


class Reader:
    """Follows an event log by the book: what is stored, removed and moved; a snapshot after a gap."""

    def __init__(self, log: EventLog, cache: HasSnapshots) -> None:
        self._log = log
        self._cache = cache
        self._seq = 0
        self.held: Counter[Place] = Counter()
        self.saved: Counter[tuple[Namespace, bytes]] = Counter()  # in storage, as far as it was told
        self.resyncs = 0

    def follow(self) -> None:
        events = self._log.since(self._seq)
        if events is None:
            self.resync()
            return
        for event in events:
            assert event.seq == self._seq + 1, "an event is missing"
            self._seq = event.seq
            self._apply(event)

    def resync(self) -> None:
        snapshot = self._cache.snapshot()
        self._seq = snapshot.seq
        self.held = Counter(
            (holding.tier, holding.namespace, name) for holding in snapshot.holdings for name in holding.names
        )
        self.resyncs += 1

    def digest(self) -> CacheDigest:
        """What the log's digest must be, from all that is believed to be there."""
        return CacheDigest(self._seq, self._digest_of("device"), self._digest_of("host"))

    def _digest_of(self, tier: str) -> TierDigest:
        counts = [(name, count) for (of, _, name), count in self.held.items() if of == tier]
        total = sum(int.from_bytes(name, "little") * count for name, count in counts)
        return TierDigest(sum(count for _, count in counts), total % 2**128)

    def _apply(self, event: CacheEvent) -> None:
        if event.tier == "storage":
            assert event.kind is EventKind.STORED
            self.saved.update((event.namespace, name) for name in event.names)
            return
        for name in event.names:
            if event.kind is EventKind.STORED:
                self.held[event.tier, event.namespace, name] += 1
            else:
                left = event.tier if event.kind is EventKind.REMOVED else "device"
                place = (left, event.namespace, name)
                assert self.held[place] > 0, f"{event.kind} of a page that is not there"
                self.held[place] -= 1
                if not self.held[place]:
                    del self.held[place]


def walked(cache: TieredCache, names: PageNames) -> Counter[Place]:
    """What a walk finds in each tier, with names computed from scratch where the path is still whole."""
    found: Counter[Place] = Counter()
    pending = [*cache._tree.roots.tops.values(), *cache._removal.limbo]
    while pending:
        node = pending.pop()
        pending.extend(node.children.values())
        if node.is_root or node.space is None:
            continue
        key = key_of(node)
        first = (node.depth - len(node.key)) // names.page_bytes
        pages = _own_names(names, node) if key is None else page_hashes(key, names.page_size, names.seed)[first:]
        for tier, holds in (("device", bool(node.value)), ("host", node.mirrored)):
            if holds:
                found.update((tier, node.space.namespace, name) for name in pages)
    return found


def key_of(node: Node) -> PrefixKey | None:
    """The key of the path down to a node; None if the upper part of it was dropped and has forgotten its namespace."""
    parts: list[tuple[Namespace, bytes]] = []
    above: Node | None = node
    while above is not None:
        if above.space is None:
            return None
        namespace = above.space.namespace
        if parts and parts[-1][0] == namespace:
            parts[-1] = (namespace, bytes(above.key) + parts[-1][1])
        else:
            parts.append((namespace, bytes(above.key)))
        above = above.parent
    return PrefixKey(
        tuple(Segment(namespace, np.frombuffer(packed, TOKEN_DTYPE)) for namespace, packed in reversed(parts))
    )


def _own_names(names: PageNames, node: Node) -> list[bytes]:
    joined = names.between(node, node.depth - len(node.key), node.depth)
    return [joined[at : at + PAGE_HASH_BYTES] for at in range(0, len(joined), PAGE_HASH_BYTES)]
