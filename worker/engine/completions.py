"""Which sequences are alive, and which of them are completions of one request."""

from collections.abc import Iterable, Iterator

from worker.engine.ports import SequenceId
from worker.engine.sequence import Sequence


class Completions:
    """The living sequences by request.

    A request for several completions is one sequence, the leader, until its prompt is computed; then the others, its
    branches, are born. Invariant: of each request here some sequence is alive.
    """

    def __init__(self) -> None:
        self._alive: dict[SequenceId, list[Sequence]] = {}
        self._num_unborn: dict[SequenceId, int] = {}

    def __len__(self) -> int:
        """How many there are of all requests, the unborn ones included."""
        return self.num_alive + sum(self._num_unborn.values())

    def __contains__(self, sequence_id: SequenceId) -> bool:
        return sequence_id in self._alive

    def __iter__(self) -> Iterator[Sequence]:
        """Yield those alive now, whatever ends meanwhile."""
        return iter([sequence for alive in self._alive.values() for sequence in alive])

    @property
    def num_alive(self) -> int:
        return sum(map(len, self._alive.values()))

    def of(self, sequence_id: SequenceId) -> tuple[Sequence, ...]:
        """Return those of a request that are alive."""
        return tuple(self._alive.get(sequence_id, ()))

    def add(self, leader: Sequence) -> None:
        sequence_id = leader.request.sequence_id
        self._alive[sequence_id] = [leader]
        if leader.request.params.n > 1:
            self._num_unborn[sequence_id] = leader.request.params.n - 1

    def born(self, leader: Sequence, branches: Iterable[Sequence]) -> None:
        """Take in all the branches of a leader that is alive."""
        sequence_id = leader.request.sequence_id
        self._alive[sequence_id].extend(branches)
        del self._num_unborn[sequence_id]

    def remove(self, sequence: Sequence) -> None:
        """A sequence has ended. A leader that ends before its branches are born has none."""
        sequence_id = sequence.request.sequence_id
        alive = self._alive[sequence_id]
        alive.remove(sequence)
        if not alive:
            del self._alive[sequence_id]
            self._num_unborn.pop(sequence_id, None)
