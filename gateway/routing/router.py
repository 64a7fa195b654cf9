"""The choice of a worker for one request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hicache.keys import PrefixKey


@dataclass(frozen=True, slots=True)
class Placement:
    """What a choice may depend on of the request."""

    model: str
    key: PrefixKey  # the prompt, in its namespaces
    adapter_revision: str = ""  # "": the base model
    session: bytes = b""  # what is best kept on one worker, beyond its prompt


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that is connected, serves the model and can hold the request."""

    worker: str  # its configured address
    open_streams: int  # of this gateway
    running_sequences: int  # as the worker last reported
    waiting_sequences: int


@dataclass(frozen=True, slots=True)
class Choice:
    """Who gets a request, and why."""

    worker: str
    explanation: Mapping[str, object] = field(default_factory=dict)  # for people: names and figures


class Router(Protocol):
    def choose(self, placement: Placement, candidates: Sequence[Candidate], now: float) -> Choice:
        """Return one of `candidates`, of which there is at least one. `now` is in seconds of a monotonic clock."""
        ...


class RoundRobin:
    """Takes whoever was chosen longest ago, so that workers that come and go do not upset the turn of the others."""

    def __init__(self) -> None:
        self._turns = 0
        self._last_turn: dict[str, int] = {}

    def choose(self, placement: Placement, candidates: Sequence[Candidate], now: float) -> Choice:
        chosen = min(candidates, key=lambda candidate: self._last_turn.get(candidate.worker, 0))
        self._turns += 1
        self._last_turn[chosen.worker] = self._turns
        return Choice(chosen.worker)
