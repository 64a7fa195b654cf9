"""Which sequences are alive, and which of them are completions of one request."""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf

from worker.engine.ports import SequenceId
from worker.engine.sequence import Sequence


class Completions:
    """The living sequences by request.

    A request for several completions is one sequence, the leader, until its prompt is computed; then the others, its
    branches, are born. Where they were begun elsewhere, all are here at once.
    Invariant: of each request here some sequence is alive.
    """

    def __init__(self) -> None:
        self._alive: dict[SequenceId, list[Sequence]] = {}
        self._num_unborn: dict[SequenceId, int] = {}  # of those whose prompt is not computed
        self._num_alive = 0
        self._num_expected = 0  # unborn ones included
        self._tenants: dict[str, tuple[int, float]] = {}  # how many of these each has, and its weight

    def __len__(self) -> int:
        """How many there are of all requests, the unborn ones included."""
        return self._num_expected

    def __contains__(self, sequence_id: SequenceId) -> bool:
        return sequence_id in self._alive

    def __iter__(self) -> Iterator[Sequence]:
        """Yield those alive now, whatever ends meanwhile."""
        return iter([sequence for alive in self._alive.values() for sequence in alive])

    @property
    def num_alive(self) -> int:
        return self._num_alive

    def tenants(self) -> Iterable[tuple[str, tuple[int, float]]]:
        """Return each tenant that has completions here, with their number, unborn ones included, and its weight."""
        return self._tenants.items()

    def of(self, sequence_id: SequenceId) -> tuple[Sequence, ...]:
        """Return those of a request that are alive."""
        return tuple(self._alive.get(sequence_id, ()))

    def add(self, begun: SequenceOf[Sequence]) -> None:
        """Take in what a request begins with: its leader, or all of those that go on."""
        request = begun[0].request
        self._alive[request.sequence_id] = list(begun)
        self._num_alive += len(begun)
        self._expect(request.num_completions, begun[0])
        if request.num_completions > len(begun):
            self._num_unborn[request.sequence_id] = request.num_completions - len(begun)

    def born(self, leader: Sequence, branches: SequenceOf[Sequence]) -> None:
        """Take in all the branches of a leader that is alive."""
        sequence_id = leader.request.sequence_id
        self._alive[sequence_id].extend(branches)
        self._num_alive += len(branches)
        del self._num_unborn[sequence_id]

    def remove(self, sequence: Sequence) -> None:
        """A sequence has ended. A leader that ends before its branches are born has none."""
        sequence_id = sequence.request.sequence_id
        alive = self._alive[sequence_id]
        alive.remove(sequence)
        self._num_alive -= 1
        num_gone = 1
        if not alive:
            del self._alive[sequence_id]
            num_gone += self._num_unborn.pop(sequence_id, 0)
        self._expect(-num_gone, sequence)

    def _expect(self, more: int, sequence: Sequence) -> None:
        """So many more are to be here, or fewer."""
        self._num_expected += more
        tenant = sequence.request.tenant
        number, _ = self._tenants.get(tenant, (0, 0.0))
        if number + more:
            self._tenants[tenant] = (number + more, sequence.request.weight)
        else:
            del self._tenants[tenant]

    def check(self) -> None:
        """Verify the invariants; raises AssertionError."""
        assert all(self._alive.values()), "a request without a sequence"
        assert not any(sequence.ended for sequence in self), "an ended sequence is alive"
        assert self._num_alive == sum(map(len, self._alive.values())), "living sequences are miscounted"
        unborn = sum(self._num_unborn.values())
        assert self._num_expected == self._num_alive + unborn, "completions to come are miscounted"
        assert self._num_expected == sum(number for number, _ in self._tenants.values()), "tenants are miscounted"
