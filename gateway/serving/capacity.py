"""How much there is room for at a time."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import OverloadedError


class Capacity:
    """At most `limit` of something at a time. Belongs to the event loop. Invariant: 0 <= taken <= limit."""

    def __init__(self, limit: int, what: str, reason: str) -> None:
        self._limit = limit
        self._what = what
        self._reason = reason
        self.taken = 0

    @contextmanager
    def take(self) -> Iterator[None]:
        """Take one for as long as the context lasts. Raises OverloadedError when all are taken."""
        if self.taken >= self._limit:
            raise OverloadedError(f"{self._limit} {self._what} at a time are all there may be", reason=self._reason)
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
