"""Choices that need no index: in turn, by load, by session."""

from collections.abc import Sequence
from hashlib import blake2b

from gateway.routing.router import Candidate, Choice, Placement
from gateway.routing.turns import Turns


class RoundRobin:
    """Takes whoever was chosen longest ago, so that workers that come and go do not upset the turn of the others."""

    def __init__(self) -> None:
        self._turns = Turns()

    def choose(self, placement: Placement, candidates: Sequence[Candidate], now: float) -> Choice:
        chosen = min(candidates, key=lambda candidate: self._turns.last(candidate.worker))
        self._turns.took(chosen.worker, len(candidates))
        return Choice(chosen.worker, "only" if len(candidates) == 1 else "turn")


class LeastLoaded:
    """Takes whoever would begin first; of those that are equal the one with the fewest sequences, then in turn.

    All are looked at, not two at random: what this gateway has sent is known at once, so it does not fall upon one
    worker between two reports.
    """

    def __init__(self) -> None:
        self._turns = Turns()

    def choose(self, placement: Placement, candidates: Sequence[Candidate], now: float) -> Choice:
        chosen = min(candidates, key=lambda each: (each.wait_s, each.sequences, self._turns.last(each.worker)))
        self._turns.took(chosen.worker, len(candidates))
        return Choice(chosen.worker, "only" if len(candidates) == 1 else "load")


class BySession:
    """Keeps a session on one worker; a request without one is kept with those of its namespace.

    Rendezvous hashing: each pair of session and worker has a number, and the highest wins. When a worker comes, it
    takes over what it wins and nothing else moves; when it goes, only what it had moves. Every gateway chooses alike.
    """

    def choose(self, placement: Placement, candidates: Sequence[Candidate], now: float) -> Choice:
        session = placement.session or placement.key.namespaces[-1].encode()
        chosen = max(candidates, key=lambda candidate: _weight(session, candidate.worker))
        return Choice(chosen.worker, "only" if len(candidates) == 1 else "session")


def _weight(session: bytes, worker: str) -> bytes:
    # Length first: ("a", "bc") and ("ab", "c") must not meet.
    return blake2b(len(session).to_bytes(4, "little") + session + worker.encode(), digest_size=16).digest()
