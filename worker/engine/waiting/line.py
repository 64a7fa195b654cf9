"""What the scheduler asks of a waiting line, and what a line may ask about the cache. Shapes only."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from worker.engine.sequence import Sequence

Readiness = Callable[[Sequence], bool]


@dataclass(frozen=True, slots=True)
class Front:
    """What one tenant has waiting at its highest priority."""

    priority: int
    weight: float
    num_tokens: int  # of all those sequences


class CachedPrefixes(Protocol):
    """Tells how much of a waiting sequence lies in the cache. Asking again costs nothing while nothing has changed."""

    @property
    def page_size(self) -> int: ...

    def cached_tokens(self, sequence: Sequence) -> int:
        """Return how many leading tokens of its key would be found now, in any tier that is near."""
        ...


class WaitingLine(Protocol):
    """Sequences that wait to start, and the order in which they should.

    Every sequence is handed out in the end, if those handed out before it are taken. What a tenant's sequences find in
    the cache decides about the order among them, and never about that of two other tenants.
    """

    def __len__(self) -> int: ...

    def push(self, sequence: Sequence) -> None:
        """Take in a sequence: a new one, or one that had begun and goes before all new ones of its standing."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Take out one that has ended while it waited. Raises KeyError for one that doesn't wait."""
        ...

    def start(self, sequence: Sequence, cached_tokens: int) -> None:
        """Take out one that runs from now on, with so much of its key in the cache.

        Its tenant is charged for it, unless it was when it started before. Raises KeyError for one that doesn't wait.
        """
        ...

    def members(self) -> Iterator[Sequence]:
        """Yield those waiting, in any order."""
        ...

    def front(self) -> Mapping[str, Front]:
        """Return what waits of each tenant that has something waiting."""
        ...

    def candidates(self, now: float, is_ready: Readiness) -> Iterator[Sequence]:
        """Yield those that are ready, the next to start first.

        Those already yielded may be removed meanwhile, and others pushed, which are not yielded before the next call.
        """
        ...

    def settle(self, sequence: Sequence) -> None:
        """A sequence has ended: what was charged for it becomes what it really had. Nothing if it never started."""
        ...

    def published(self, sequence: Sequence, num_tokens: int) -> None:
        """The cache has the first `num_tokens` tokens of a running sequence's key from now on."""
        ...

    def check(self) -> None:
        """Verify the line's invariants; raises AssertionError."""
        ...
