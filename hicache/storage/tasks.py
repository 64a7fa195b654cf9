"""What the I/O thread does with a store, batch by batch. Knows pages and stores, no threads and no tickets.

Each function here is a generator: between two batches, whoever drives it may do something more urgent, or stop.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hicache.storage.store import PageName, PageStore

_NAMES_PER_LOOKUP: Final = 512
_PAGES_AT_FIRST: Final = 16
_MAX_PAGES: Final = 512


@dataclass(frozen=True, slots=True)
class Step:
    """What one batch came to: `pages` counts towards the task's result, `num_bytes` is what was moved for it."""

    pages: int
    num_bytes: int = 0


class BatchSize:
    """How many pages make about `num_bytes`, learnt from the pages seen: nobody knows how large a page is before."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self.num_pages = min(_PAGES_AT_FIRST, _MAX_PAGES)

    def saw(self, num_pages: int, num_bytes: int) -> None:
        if num_pages and num_bytes:
            self.num_pages = max(1, min(self._num_bytes * num_pages // num_bytes, _MAX_PAGES))


def looking_up(store: PageStore, names: Sequence[PageName]) -> Iterator[Step]:
    """Count the leading pages that are there."""
    for start in range(0, len(names), _NAMES_PER_LOOKUP):
        there = store.contains(names[start : start + _NAMES_PER_LOOKUP])
        leading = there.index(False) if False in there else len(there)
        yield Step(leading)
        if leading < len(there):
            return


def loading(
    store: PageStore, names: Sequence[PageName], write: Callable[[int, bytes], None], batch: BatchSize
) -> Iterator[Step]:
    """Hand the leading pages to `write` in order, and stop at the first one that is missing or corrupt."""
    start = 0
    while start < len(names):
        contents = store.get(names[start : start + batch.num_pages])
        leading = [content for content in contents[: _first_none(contents)] if content is not None]
        for index, content in enumerate(leading, start):
            write(index, content)
        num_bytes = sum(map(len, leading))
        batch.saw(len(leading), num_bytes)
        yield Step(len(leading), num_bytes)
        if len(leading) < len(contents):
            return
        start += len(contents)


def saving(
    store: PageStore, names: Sequence[PageName], read: Callable[[int], bytes], batch: BatchSize
) -> Iterator[Step]:
    """Store the pages that are not there yet, in order. Only these are asked of `read`."""
    start = 0
    while start < len(names):
        chunk = names[start : start + batch.num_pages]
        there = store.contains(chunk)
        pages = [(name, read(start + i)) for i, name in enumerate(chunk) if not there[i]]
        num_bytes = sum(len(content) for _, content in pages)
        stored = store.put(pages) if pages else 0
        batch.saw(len(pages), num_bytes)
        yield Step(there.count(True) + stored, num_bytes)
        start += len(chunk)


def removing(store: PageStore, group: bytes) -> Iterator[Step]:
    """Remove a group in one step."""
    yield Step(store.remove_group(group))


def _first_none(contents: Sequence[bytes | None]) -> int:
    return contents.index(None) if None in contents else len(contents)
