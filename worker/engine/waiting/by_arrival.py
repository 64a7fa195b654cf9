"""Lines whose order depends on the sequences alone. Know nothing of tenants, caches or costs."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from worker.engine.sequence import Sequence
from worker.engine.waiting.line import Front, Readiness

SortKey = Callable[[Sequence], tuple[Any, ...]]


class SortedLine:
    """A line in the order of `sort_key`, which is distinct for each sequence and doesn't change while it waits."""

    def __init__(self, sort_key: SortKey) -> None:
        self._sort_key = sort_key
        self._line: list[Sequence] = []  # ascending by sort key
        self._front: dict[str, Front] | None = None  # None: somebody has come or gone since it was known

    def __len__(self) -> int:
        return len(self._line)

    def push(self, sequence: Sequence) -> None:
        insort(self._line, sequence, key=self._sort_key)
        self._front = None

    def remove(self, sequence: Sequence) -> None:
        index = bisect_left(self._line, self._sort_key(sequence), key=self._sort_key)
        if index == len(self._line) or self._line[index] is not sequence:
            raise KeyError(f"sequence {sequence.request.sequence_id} is not waiting")
        del self._line[index]
        self._front = None

    def members(self) -> Iterator[Sequence]:
        return iter(tuple(self._line))

    def front(self) -> Mapping[str, Front]:
        if self._front is None:
            self._front = _front(self._line)
        return self._front

    def candidates(self, now: float, is_ready: Readiness) -> Iterator[Sequence]:
        return filter(is_ready, tuple(self._line))

    def start(self, sequence: Sequence, cached_tokens: int) -> None:
        self.remove(sequence)

    def settle(self, sequence: Sequence) -> None:
        return

    def published(self, sequence: Sequence, num_tokens: int) -> None:
        return

    def check(self) -> None:
        keys = [self._sort_key(sequence) for sequence in self._line]
        assert keys == sorted(set(keys)), "the line is out of order"


def _front(line: Iterable[Sequence]) -> dict[str, Front]:
    front: dict[str, Front] = {}
    for sequence in line:
        request = sequence.request
        known = front.get(request.tenant)
        if known is None or request.priority > known.priority:
            front[request.tenant] = Front(request.priority, request.weight, sequence.num_known)
        elif request.priority == known.priority:
            front[request.tenant] = replace(known, num_tokens=known.num_tokens + sequence.num_known)
    return front


def first_come(sequence: Sequence) -> tuple[bool, int]:
    return (not sequence.goes_on, sequence.order)


def by_priority(sequence: Sequence) -> tuple[int, bool, int]:
    return (-sequence.request.priority, not sequence.goes_on, sequence.order)
