"""Pages in the memory of this process: for tests, and to try the storage tier without a store."""

from collections import OrderedDict
from collections.abc import Sequence

from hicache.storage.frame import frame_size
from hicache.storage.store import PageName, StoreCounts, StoreStats, check_limit


class MemoryStore:
    """A dict in order of use. Invariant: the pages' sizes add up to `_num_bytes`, at most `max_bytes`."""

    name = "memory"

    def __init__(self, max_bytes: int) -> None:
        check_limit("storage.max_bytes", max_bytes)
        self._max_bytes = max_bytes
        self._pages: OrderedDict[PageName, bytes] = OrderedDict()  # the one used last is last
        self._num_bytes = 0
        self._counts = StoreCounts()

    def put(self, pages: Sequence[tuple[PageName, bytes]]) -> int:
        for name, content in reversed(pages):
            if frame_size(content) > self._max_bytes:
                self._counts.refused += 1
                continue
            self._drop(name)
            self._pages[name] = content
            self._num_bytes += frame_size(content)
            self._counts.stored += 1
        while self._num_bytes > self._max_bytes:
            self._drop(next(iter(self._pages)))
            self._counts.evicted += 1
        return sum(name in self._pages for name, _ in pages)

    def get(self, names: Sequence[PageName]) -> list[bytes | None]:
        self._use(names)
        contents = [self._pages.get(name) for name in names]
        missing = contents.count(None)
        self._counts.missing += missing
        self._counts.found += len(contents) - missing
        return contents

    def contains(self, names: Sequence[PageName]) -> list[bool]:
        self._use(names)
        return [name in self._pages for name in names]

    def remove_group(self, group: bytes) -> int:
        names = [name for name in self._pages if name.group == group]
        for name in names:
            self._drop(name)
        return len(names)

    def stats(self) -> StoreStats:
        return self._counts.stats(len(self._pages), self._num_bytes)

    def close(self) -> None:
        """Nothing to let go of."""

    def _use(self, names: Sequence[PageName]) -> None:
        for name in reversed(names):
            if name in self._pages:
                self._pages.move_to_end(name)

    def _drop(self, name: PageName) -> None:
        content = self._pages.pop(name, None)
        if content is not None:
            self._num_bytes -= frame_size(content)
