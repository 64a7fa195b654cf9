"""What a store of pages promises, and the values it speaks in. Knows no store in particular."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from hicache.errors import HicacheError, InvalidKeyError
from hicache.keys import PAGE_HASH_BYTES

GROUP_BYTES: Final = 16


class StoreUnavailableError(HicacheError):
    """The store as a whole is away: a dead server, a full or vanished disk. Never raised because of one page."""


class StoreConfigError(HicacheError, ValueError):
    """A store cannot be opened as configured; the message names the field and never a credential."""


@dataclass(frozen=True, slots=True)
class PageName:
    """What a page is called: `group` is the digest of its namespace, `page` its chained hash. 16 bytes each."""

    group: bytes
    page: bytes

    def __post_init__(self) -> None:
        if len(self.group) != GROUP_BYTES:
            raise InvalidKeyError(f"group must be {GROUP_BYTES} bytes, got {len(self.group)}")
        if len(self.page) != PAGE_HASH_BYTES:
            raise InvalidKeyError(f"page must be {PAGE_HASH_BYTES} bytes, got {len(self.page)}")


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store holds, as far as this process knows, and what happened to its pages here since it was opened.

    `num_pages` and `num_bytes` are of everybody who shares the store; bytes include the frame around each page.
    """

    num_pages: int = 0
    num_bytes: int = 0
    stored: int = 0  # pages written
    found: int = 0  # pages that `get` returned
    missing: int = 0  # pages that `get` did not find
    corrupt: int = 0  # pages that `get` found torn, altered or under a wrong name, and removed
    evicted: int = 0  # pages dropped for the bound or for their age
    refused: int = 0  # pages larger than the whole store


@dataclass(slots=True)
class StoreCounts:
    """The counts of one open store; its thread writes them."""

    stored: int = 0
    found: int = 0
    missing: int = 0
    corrupt: int = 0
    evicted: int = 0
    refused: int = 0

    def stats(self, num_pages: int, num_bytes: int) -> StoreStats:
        return StoreStats(
            num_pages=num_pages,
            num_bytes=num_bytes,
            stored=self.stored,
            found=self.found,
            missing=self.missing,
            corrupt=self.corrupt,
            evicted=self.evicted,
            refused=self.refused,
        )


def check_limit(field: str, value: float) -> None:
    """Raise StoreConfigError unless a limit is positive."""
    if not value > 0:
        raise StoreConfigError(f"{field} must be positive, got {value:g}")


class PageStore(Protocol):
    """Pages by name, in batches. One thread calls it, and it may block; `stats` alone is for every thread.

    A store is bounded: pages that nobody used for longest go first. Within one batch the first name counts as the one
    used last, because a page is worth nothing without those before it. All but `stats` and `close` raise
    StoreUnavailableError.
    """

    @property
    def name(self) -> str:
        """What metrics call this kind of store."""
        ...

    def put(self, pages: Sequence[tuple[PageName, bytes]]) -> int:
        """Store pages and return how many of them it holds now. One that was there already counts as used."""
        ...

    def get(self, names: Sequence[PageName]) -> list[bytes | None]:
        """Return the verified content of each page, which counts as used; None for one that is missing or corrupt."""
        ...

    def contains(self, names: Sequence[PageName]) -> list[bool]:
        """Tell which pages are there, unverified. They count as used: somebody has need of them."""
        ...

    def remove_group(self, group: bytes) -> int:
        """Remove every page of a group and return how many there were."""
        ...

    def stats(self) -> StoreStats:
        """Return the figures of the last call; asks nobody, so it neither blocks nor fails."""
        ...

    def close(self) -> None:
        """Let go of connections and files; the pages stay where they can. Closing twice is harmless."""
        ...
