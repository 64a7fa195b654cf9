"""Prefixes that are being computed right now, so that nobody computes them a second time.

A sequence about to start may find that a running one is just computing what it lacks. It then *follows* that leader:
it stays in the waiting line until the leader has computed the shared part, and starts with a hit.
"""

from dataclasses import dataclass

import numpy as np

from hicache.keys import PrefixKey
from worker.engine.sequence import Sequence

_MAX_WAITS = 4
"""How many leaders one sequence may follow, one after another, before it starts regardless."""


def shared_tokens(one: PrefixKey, other: PrefixKey) -> int:
    """Return how many leading tokens two keys have in common, namespaces and segment borders included."""
    shared = 0
    for ours, theirs in zip(one.segments, other.segments, strict=False):
        if ours.namespace != theirs.namespace:
            break
        length = min(len(ours.token_ids), len(theirs.token_ids))
        differing = np.flatnonzero(ours.token_ids[:length] != theirs.token_ids[:length])
        if len(differing):
            return shared + int(differing[0])
        shared += length
        if len(ours.token_ids) != len(theirs.token_ids):
            break
    return shared


@dataclass(frozen=True, slots=True)
class _Wait:
    leader: Sequence
    until: int  # tokens of the leader that must be computed


class InFlightPrefixes:
    """Who computes a prefix now, and who waits for it.

    A wait ends when the leader has computed enough, is paused, or is gone; leaders run, so each wait is as long as a
    prefill at most, and the number of waits of a sequence is bounded. Nobody follows a sequence of lower priority,
    because that may have to wait for others that the follower needn't wait for.
    """

    def __init__(self, page_size: int, min_shared_tokens: int) -> None:
        self._page_size = page_size
        self._min_shared_tokens = min_shared_tokens
        self._leaders: dict[int, Sequence] = {}  # by order; those that run and still prefill
        self._waits: dict[int, _Wait] = {}  # by order of the follower
        self._num_waits: dict[int, int] = {}

    def started(self, sequence: Sequence) -> None:
        """`sequence` runs, with some of its key to compute."""
        self._leaders[sequence.order] = sequence
        self._waits.pop(sequence.order, None)
        self._num_waits.pop(sequence.order, None)

    def ended(self, sequence: Sequence) -> None:
        """`sequence` has computed its key, was paused, or is gone. Harmless if it was never known here."""
        self._leaders.pop(sequence.order, None)
        self._waits.pop(sequence.order, None)
        self._num_waits.pop(sequence.order, None)

    def is_following(self, sequence: Sequence) -> bool:
        """Whether the wait that `sequence` is in goes on. Costs the same whatever the lengths."""
        wait = self._waits.get(sequence.order)
        if wait is None:
            return False
        if wait.leader.order in self._leaders and wait.leader.num_computed < wait.until:
            return True
        del self._waits[sequence.order]
        return False

    def follow(self, sequence: Sequence, hit_tokens: int) -> bool:
        """Make `sequence`, which would hit `hit_tokens` now, wait if a leader computes enough of what it lacks.

        Returns whether it waits.
        """
        num_waits = self._num_waits.get(sequence.order, 0)
        if num_waits == _MAX_WAITS:
            return False
        wait = self._best_wait(sequence)
        if wait is None or wait.until - hit_tokens < self._min_shared_tokens:
            return False
        self._waits[sequence.order] = wait
        self._num_waits[sequence.order] = num_waits + 1
        return True

    def awaited_tokens(self, sequence: Sequence) -> int:
        """Return how many tokens of a sequence somebody else is expected to compute, or has computed."""
        wait = self._waits.get(sequence.order)
        return 0 if wait is None else wait.until

    def check(self) -> None:
        for leader in self._leaders.values():
            assert leader.lease is not None, f"{leader.request.sequence_id} leads without slots"
            assert leader.prefilling, f"{leader.request.sequence_id} leads with nothing left to compute"
        followers = self._waits.keys() | self._num_waits.keys()
        assert not followers & self._leaders.keys(), "a sequence leads and follows at once"

    def _best_wait(self, sequence: Sequence) -> _Wait | None:
        best = None
        for leader in self._leaders.values():
            if leader.request.priority < sequence.request.priority:
                continue
            # At least one token of its own is left to compute, and hits are whole pages.
            shared = min(shared_tokens(sequence.key, leader.key), sequence.max_cached_tokens)
            until = shared // self._page_size * self._page_size
            if until > leader.num_computed and (best is None or until > best.until):
                best = _Wait(leader, until)
        return best
