"""Which pages lie in a folder, how large they are and when they were last used. Knows names and numbers, no files."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from hicache.storage.store import PageName

# A group and the first byte of its pages: the pages of one folder.
Shard = tuple[bytes, int]

_SPARE_HEAP: Final = 1024


@dataclass(frozen=True, slots=True)
class Entry:
    num_bytes: int
    used_ns: int


class FolderIndex:
    """Pages by shard, and the least recently used one in O(log n).

    Invariant: each entry has one heap item with its `used_ns`; items that match no entry are stale and skipped.
    `num_pages` and `num_bytes` are the sums over all entries.
    """

    def __init__(self) -> None:
        self._shards: dict[Shard, dict[bytes, Entry]] = {}
        self._heap: list[tuple[int, bytes, bytes]] = []  # used_ns, group, page
        self.num_pages = 0
        self.num_bytes = 0

    def __contains__(self, name: PageName) -> bool:
        return name.page in self._shards.get(shard_of(name), ())

    def __getitem__(self, name: PageName) -> Entry:
        return self._shards[shard_of(name)][name.page]

    def shards(self) -> set[Shard]:
        return set(self._shards)

    def pages(self, shard: Shard) -> Mapping[bytes, Entry]:
        return self._shards.get(shard, {})

    def record(self, name: PageName, num_bytes: int, used_ns: int) -> None:
        """Add a page, or replace what is known of it."""
        pages = self._shards.setdefault(shard_of(name), {})
        old = pages.get(name.page)
        pages[name.page] = Entry(num_bytes, used_ns)
        self.num_pages += old is None
        self.num_bytes += num_bytes - (old.num_bytes if old else 0)
        heappush(self._heap, (used_ns, name.group, name.page))
        if len(self._heap) > 2 * self.num_pages + _SPARE_HEAP:
            self._heap = [(entry.used_ns, name.group, name.page) for name, entry in self._entries()]
            heapify(self._heap)

    def forget(self, name: PageName) -> bool:
        """Take a page out; return whether it was there."""
        shard = shard_of(name)
        pages = self._shards.get(shard, {})
        entry = pages.pop(name.page, None)
        if entry is None:
            return False
        self.num_pages -= 1
        self.num_bytes -= entry.num_bytes
        if not pages:
            del self._shards[shard]
        return True

    def forget_shard(self, shard: Shard) -> None:
        for page in tuple(self.pages(shard)):
            self.forget(PageName(shard[0], page))

    def forget_group(self, group: bytes) -> None:
        for first_byte in range(256):
            self.forget_shard((group, first_byte))

    def oldest(self) -> PageName | None:
        """Return the page that nobody used for longest."""
        while self._heap:
            used_ns, group, page = self._heap[0]
            entry = self._shards.get((group, page[0]), {}).get(page)
            if entry is not None and entry.used_ns == used_ns:
                return PageName(group, page)
            heappop(self._heap)
        return None

    @property
    def heap_size(self) -> int:
        """Items in the heap, stale ones included: at most about twice the pages."""
        return len(self._heap)

    def check(self) -> None:
        """Recompute every invariant from scratch."""
        entries = dict(self._entries())
        assert self.num_pages == len(entries)
        assert self.num_bytes == sum(entry.num_bytes for entry in entries.values())
        assert {(e.used_ns, name.group, name.page) for name, e in entries.items()} <= set(self._heap)
        assert all(self._shards.values())

    def _entries(self) -> Iterator[tuple[PageName, Entry]]:
        for (group, _), pages in self._shards.items():
            for page, entry in pages.items():
                yield PageName(group, page), entry


def shard_of(name: PageName) -> Shard:
    return name.group, name.page[0]
