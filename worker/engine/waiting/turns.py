"""Whose turn it is among tenants of one priority. Knows what each has been given, and nothing of tokens or caches."""

from collections.abc import Iterable
from typing import Protocol

from worker.engine.sequence import Sequence

TurnKey = tuple[float, ...]


class Turns(Protocol):
    """Told of all that waits and starts; says which tenant goes first."""

    def arrived(self, sequence: Sequence) -> None:
        """A sequence waits from now on."""
        ...

    def left(self, sequence: Sequence) -> None:
        """A sequence waits no more, and doesn't start."""
        ...

    def started(self, sequence: Sequence, cached_tokens: int) -> None:
        """A sequence waits no more, and runs, with so much of its key in the cache."""
        ...

    def settled(self, sequence: Sequence) -> None:
        """A sequence has ended that may have run."""
        ...

    def key(self, tenant: str) -> TurnKey:
        """Return what sorts the tenant that goes first to the front. `tenant` has sequences that wait."""
        ...

    def limit(self, contenders: Iterable[str]) -> float:
        """Return what `may_start` is to be asked with, as long as these tenants wait and nobody starts."""
        ...

    def may_start(self, tenant: str, limit: float) -> bool:
        """Whether a tenant may start one although others wait as well."""
        ...

    def check(self) -> None:
        """Verify the invariants; raises AssertionError."""
        ...


class RoundRobin:
    """One start for each tenant in turn, whatever it costs."""

    def __init__(self) -> None:
        self._num_turns = 0
        self._last_turns: dict[str, int] = {}  # of those that have sequences waiting
        self._num_waiting: dict[str, int] = {}

    def arrived(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        self._num_waiting[tenant] = self._num_waiting.get(tenant, 0) + 1
        # Who comes goes behind those that wait already, however long it was away.
        self._last_turns.setdefault(tenant, self._num_turns)

    def left(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        self._num_waiting[tenant] -= 1
        if not self._num_waiting[tenant]:
            del self._num_waiting[tenant], self._last_turns[tenant]

    def started(self, sequence: Sequence, cached_tokens: int) -> None:
        self._num_turns += 1
        self._last_turns[sequence.request.tenant] = self._num_turns
        self.left(sequence)

    def settled(self, sequence: Sequence) -> None:
        return

    def key(self, tenant: str) -> TurnKey:
        return (self._last_turns[tenant],)

    def limit(self, contenders: Iterable[str]) -> float:
        return 0.0

    def may_start(self, tenant: str, limit: float) -> bool:
        return True

    def check(self) -> None:
        assert self._num_waiting.keys() == self._last_turns.keys(), "a tenant without anybody waiting is remembered"
        assert all(self._num_waiting.values()), "a tenant without anybody waiting is remembered"
