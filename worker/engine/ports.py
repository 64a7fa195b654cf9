"""What goes into the engine and what comes out of it, as values.

Knows nothing of how either is carried or computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from hicache.cache import Hit, TenantHoldings
from hicache.events import CacheDigest, CacheEvent
from hicache.keys import PrefixKey
from worker.batch import SamplingParams, TokenLogprobs
from worker.engine.constraints import Constraint
from worker.engine.timeline import Timeline
from worker.errors import Failure

SequenceId = tuple[int, int]
"""(link of a gateway, the gateway's own number): names one sequence among all that live in an engine at a time."""


@dataclass(frozen=True, slots=True)
class Continued:
    """A completion that was begun elsewhere and goes on here: its index among its request's, and what it has by now."""

    index: int
    token_ids: tuple[int, ...]  # at least one


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate: one completion of a prompt, or `params.n`, or what is left of those that were begun elsewhere.

    What goes on is as if it had paused here: nothing that it came with is told or counted again. `deadline` is on the
    engine's clock (monotonic seconds), None for none. Larger `priority` goes first where the order of the waiting line
    looks at it, and is paused last.
    """

    sequence_id: SequenceId
    request_id: str  # for logs only
    key: PrefixKey  # the prompt, with its namespaces
    params: SamplingParams
    tenant: str
    adapter: str = ""
    deadline: float | None = None
    priority: int = 0
    weight: float = 1.0  # of its tenant, against others of the same priority
    cache_floor_tokens: int = 0  # what its tenant is promised of each tier from now on; 0: as configured
    constraint: Constraint | None = None  # what each completion must read like
    continued: tuple[Continued, ...] = ()  # none: it begins; else those of `params.n` not named here have ended

    @property
    def num_completions(self) -> int:
        """How many there are to be here."""
        return len(self.continued) or self.params.n

    @property
    def adapter_revision(self) -> str:
        """The adapter that computes it, "" for the base model: the very one that its KV is filed under."""
        return self.key.namespaces[-1].adapter_revision


@dataclass(frozen=True, slots=True)
class Admission:
    """What the cache had of a prompt when its sequence was first admitted; made once per sequence.

    Of one that goes on, all that it came with counts as its prompt; each completion of such a request has its own.
    hit.total + computed = prompt_tokens, and at least one token is always computed.
    """

    prompt_tokens: int
    hit: Hit

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.hit.total


class FinishReason(Enum):
    """How a sequence ended that did not fail."""

    STOP = "stop"  # an end token or a stop string, or nothing may follow under the constraint
    LENGTH = "length"  # max_new_tokens reached


@dataclass(frozen=True, slots=True)
class SequenceOutput:
    """The news of one completion after one step; the one with `finish` is its last.

    A Failure ends all completions of a request, and is told of each that had begun and had not ended.
    """

    sequence_id: SequenceId
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token id where asked for, else empty
    admission: Admission | None = None  # in the first output since the sequence was admitted, never again
    finish: FinishReason | Failure | None = None
    index: int = 0  # which of the request's completions
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # the next ones of the prompt; of completion 0
    timeline: Timeline | None = None  # with `finish`: when it did what; None where it never became a sequence


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """What one link of a gateway has here: sequences, and what these have yet to compute of what they came with."""

    sequences: int = 0
    pending_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine is after a step, and how fast it is of late. Speeds are 0 as long as nobody knows."""

    running: int  # sequences
    waiting: int  # sequences, paused ones included
    free_slots: int
    evictable_slots: int
    num_slots: int
    links: Mapping[int, LinkLoad] = field(default_factory=dict)  # those that have something here
    prefill_tokens_per_s: float = 0.0
    load_tokens_per_s: float = 0.0
    fetch_tokens_per_s: float = 0.0
    step_s: float = 0.0  # what a forward pass takes

    @property
    def pending_tokens(self) -> int:
        """What is yet to be computed of prompts, of all links."""
        return sum([link.pending_tokens for link in self.links.values()])


@dataclass(frozen=True, slots=True)
class CacheNews:
    """What has changed in the tiers, in order, and what they hold after that, in short."""

    events: tuple[CacheEvent, ...]
    digest: CacheDigest


@dataclass(frozen=True, slots=True)
class CacheContents:
    """What lies in the tiers that have slots, and whose it is. Without a host tier that has none."""

    device_slots: int
    device_free_slots: int
    host_slots: int
    host_free_slots: int
    tenants: tuple[TenantHoldings, ...]
