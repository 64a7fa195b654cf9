"""Storage pages as the tiers above see them: what they are called, which ones storage has, and what they contain."""

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from typing import Protocol

from hicache.keys import Int32Array, Namespace, PrefixKey, page_hashes
from hicache.radix.naming import PageNames
from hicache.storage.store import GROUP_BYTES, PageName

_REMEMBERED = 200_000  # names


class PagePool(Protocol):
    """The content of host slots."""

    def page_bytes(self, num_tokens: int) -> int: ...

    def read_page(self, host_slots: Int32Array) -> bytes: ...

    def write_page(self, host_slots: Int32Array, page: bytes) -> None: ...


class KnownPages:
    """Names of pages that were saved or found lately, the latest of them."""

    def __init__(self) -> None:
        self._names: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, name: bytes) -> bool:
        return name in self._names

    def add(self, name: bytes) -> None:
        self._names[name] = None
        if len(self._names) > _REMEMBERED:
            self._names.popitem(last=False)

    def discard(self, names: Iterable[PageName]) -> None:
        for name in names:
            self._names.pop(name.page, None)

    def clear(self) -> None:
        self._names.clear()


def group_of(namespace: Namespace, seed: bytes) -> bytes:
    """Return what a store calls all pages of a namespace together."""
    person = b"radixgate.group"
    return blake2b(
        len(seed).to_bytes(4, "little") + seed + namespace.encode(), digest_size=GROUP_BYTES, person=person
    ).digest()


def page_names(key: PrefixKey, names: PageNames) -> list[PageName]:
    """Return what a store calls the whole pages of a key, in order."""
    hashes = page_hashes(key, names.page_size, names.seed)
    groups: list[bytes] = []
    for namespace, _, size in key.parts(names.page_size):
        groups += [group_of(namespace, names.seed)] * (size // names.page_bytes)
    return [PageName(group, name) for group, name in zip(groups, hashes, strict=True)]
