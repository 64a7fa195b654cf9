"""What waiting sequences may do to others, and others to them: both bounded, so that nothing goes on for ever.

Knows numbers of tokens and pauses; who fits and who pauses is decided elsewhere.
"""

from collections.abc import Iterable

from worker.engine.sequence import Sequence

MAX_PAUSES = 4
"""How many running sequences may pause for one that waits, as long as that waits."""
MAX_LOOKS = 8
"""How many tenants are looked at in one step for whose first one there is no room."""


class Contention:
    """What has happened so far on behalf of, or to, each sequence that waits."""

    def __init__(self) -> None:
        self._pauses: dict[int, int] = {}  # made for it, by order
        self._patience: dict[int, int] = {}  # slots that may yet go to others before it, by order

    def may_pause_others(self, sequence: Sequence) -> bool:
        """Whether others may pause for `sequence`: one that has not run before, a few times."""
        new = sequence.admission is None and not sequence.was_paused
        return new and self._pauses.get(sequence.order, 0) < MAX_PAUSES

    def paused_other(self, sequence: Sequence) -> None:
        self._pauses[sequence.order] = self._pauses.get(sequence.order, 0) + 1

    def blocked(self, sequence: Sequence, num_slots: int) -> None:
        """It is its tenant's first and finds no room, with so many slots to get. Others may have as many before it."""
        self._patience.setdefault(sequence.order, num_slots)

    def may_overtake(self, sequence: Sequence, blocked: Iterable[Sequence], num_slots: int) -> bool:
        """Whether `sequence`, which needs so many slots, may start before all that are `blocked`."""
        return all(
            sequence.request.priority >= other.request.priority and num_slots <= self._patience[other.order]
            for other in blocked
        )

    def overtook(self, blocked: Iterable[Sequence], num_slots: int) -> None:
        for other in blocked:
            self._patience[other.order] -= num_slots

    def forget(self, sequence: Sequence) -> None:
        """It doesn't wait any more. Harmless if it is not known."""
        self._pauses.pop(sequence.order, None)
        self._patience.pop(sequence.order, None)

    def check(self, num_waiting: int) -> None:
        assert max(len(self._pauses), len(self._patience)) <= num_waiting, "somebody is remembered who doesn't wait"
