"""The choice of a worker for one request: what it may depend on, and what comes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from gateway.routing.expected import Pages
from gateway.routing.index import Holder
from hicache.keys import PrefixKey

USUAL_PREFILL_TOKENS_PER_S: Final = 10_000.0
"""Where no worker has measured yet how fast it computes prompts. It takes part in comparisons only."""


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
    open_streams: int = 0  # of this gateway
    running_sequences: int = 0  # as the worker last reported, as are the next ones
    waiting_sequences: int = 0
    # Sent since, or on its way when the worker reported: what its report cannot know of.
    unreported_sequences: int = 0
    # Prompt tokens that it has yet to compute, of all gateways, those that are on their way included.
    pending_tokens: int = 0
    prefill_tokens_per_s: float = 0.0  # measured, as are the next ones; 0: not known yet
    load_tokens_per_s: float = 0.0
    fetch_tokens_per_s: float = 0.0
    connected_at: float = 0.0  # by the clock of `choose`
    pages: Pages | None = None  # None: nothing is known of what it has
    store: Holder | None = None  # what lies in its storage; None: it has none
    resident_adapters: frozenset[str] = frozenset()  # revisions

    @property
    def sequences(self) -> int:
        """What it has to do, in sequences of all gateways."""
        reported = self.running_sequences + self.waiting_sequences + self.unreported_sequences
        return max(reported, self.open_streams)

    @property
    def wait_s(self) -> float:
        """The time that a request which is sent now waits for its own prompt to begin."""
        return self.pending_tokens / (self.prefill_tokens_per_s or USUAL_PREFILL_TOKENS_PER_S)


Reason = Literal["only", "prefix", "load", "warm_up", "turn", "session"]
"""Why a worker was chosen: there was no other; for what it has of the prompt; for how little it has to do; to give a
new one its share; because it was its turn; because the session is kept there."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Who gets a request, and why."""

    worker: str
    reason: Reason = "turn"
    figures: "Figures | None" = None

    @property
    def explanation(self) -> Mapping[str, object]:
        """For people: names and figures, as JSON has them. Made when it is asked for."""
        told: dict[str, object] = {"worker": self.worker, "reason": self.reason}
        if self.figures is not None:
            told |= self.figures.explanation()
        return told


class Figures(Protocol):
    """What a choice was made from."""

    def explanation(self) -> Mapping[str, object]: ...


class Router(Protocol):
    def choose(self, placement: Placement, candidates: Sequence[Candidate], now: float) -> Choice:
        """Return one of `candidates`, of which there is at least one. `now` is in seconds of a monotonic clock."""
        ...
