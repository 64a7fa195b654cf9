"""The waiting line: in which order sequences start. Knows nothing of slots, leases or steps."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from worker.engine.sequence import Sequence


class WaitingLine(Protocol):
    """Sequences that wait to start, and the order in which they should.

    A policy may look at a sequence's tenant, priority, arrival, length and pauses. It learns from `served` what each
    tenant has been given. Every sequence is handed out in the end, if those handed out before it are taken.
    """

    def __len__(self) -> int: ...

    def push(self, sequence: Sequence) -> None:
        """Take in a sequence: a new one, or one that was paused and goes before all new ones of its standing."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Take out one that waits: it starts, or has ended."""
        ...

    def candidates(self) -> Iterator[Sequence]:
        """Yield those waiting, the next to start first; those already yielded may be removed meanwhile."""
        ...

    def served(self, tenant: str, *, computed: int, cached: int) -> None:
        """A tenant's sequence had this many tokens computed, or found in the cache."""
        ...


SortKey = Callable[[Sequence], tuple[Any, ...]]


class SortedLine:
    """A line whose order depends on the sequences alone: `sort_key` is distinct for each and doesn't change."""

    def __init__(self, sort_key: SortKey) -> None:
        self._sort_key = sort_key
        self._line: list[Sequence] = []  # ascending by sort key

    def __len__(self) -> int:
        return len(self._line)

    def push(self, sequence: Sequence) -> None:
        insort(self._line, sequence, key=self._sort_key)

    def remove(self, sequence: Sequence) -> None:
        index = bisect_left(self._line, self._sort_key(sequence), key=self._sort_key)
        if index == len(self._line) or self._line[index] is not sequence:
            raise KeyError(f"sequence {sequence.request.sequence_id} is not waiting")
        del self._line[index]

    def candidates(self) -> Iterator[Sequence]:
        return iter(tuple(self._line))

    def served(self, tenant: str, *, computed: int, cached: int) -> None:
        return


def _first_come(sequence: Sequence) -> tuple[bool, int]:
    return (not sequence.was_paused, sequence.order)


def _by_priority(sequence: Sequence) -> tuple[int, bool, int]:
    return (-sequence.request.priority, not sequence.was_paused, sequence.order)


_SORT_KEYS: dict[str, SortKey] = {"fcfs": _first_come, "priority": _by_priority}


def by_name(name: str) -> WaitingLine:
    """Return an empty line of the policy `name`. Raises ValueError that lists the names there are."""
    try:
        return SortedLine(_SORT_KEYS[name])
    except KeyError:
        raise ValueError(f"unknown order {name!r}; known: {', '.join(sorted(_SORT_KEYS))}") from None
