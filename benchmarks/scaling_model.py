"""What a fleet of any size takes, from what its parts take: arithmetic, and nothing measured.

    cores of one gateway = what its workers say + its part of the requests
    what its workers say = workers x (a link that is busy, and its pages)      the same at every gateway

So gateways divide requests among them, and not the hearing: a fleet ends where hearing leaves no room for requests.
"""

import math
from dataclasses import dataclass
from typing import Final

ROOM: Final = 0.7
"""Of a core: what a gateway may take on average, so that a burst finds some."""

CELL: Final = 50
"""Workers of one fleet, where there are more than that."""


@dataclass(frozen=True, slots=True)
class Assumed:
    """The workers and the traffic that is reckoned with."""

    computed_tokens_per_s: float = 50_000.0  # prompt tokens that a worker computes, at its limit
    hit_rate: float = 0.5
    prompt_tokens: int = 12_000
    output_tokens: int = 300
    page_tokens: int = 64
    slots: int = 3 << 20  # of a worker, device and host
    ttl_s: float = 10.0  # of an entry in the registry, renewed three times in it

    @property
    def requests_per_s(self) -> float:
        """Of one worker."""
        return self.computed_tokens_per_s / (self.prompt_tokens * (1 - self.hit_rate))

    @property
    def pages_per_s(self) -> float:
        """That one worker stores, and as many that it removes."""
        return (self.computed_tokens_per_s + self.requests_per_s * self.output_tokens) / self.page_tokens


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Measured. Seconds of a core, unless they say otherwise."""

    request: float  # at a gateway, its prompt and one token
    output_token: float  # at a gateway
    link: float  # a second of a link whose worker reports twenty times in it
    page: float  # at a gateway, for one stored and one removed
    page_bytes: float  # in a gateway's memory
    redis_request: float
    redis_renewal: float
    redis_look: float


@dataclass(frozen=True, slots=True)
class Needs:
    """What one size of fleet needs."""

    workers: int
    requests_per_s: float
    fleets: int  # of at most CELL workers each
    hearing: float  # cores of each gateway, in the largest of these fleets
    gateways: int  # of all fleets; each at most ROOM busy
    hearing_undivided: float  # cores of each gateway, if all were one fleet
    pages: float  # in the index of one gateway
    index_gb: float
    redis: float  # cores, of all Redis together


def hearing_s(costs: UnitCosts, assumed: Assumed) -> float:
    """Return what every gateway takes to hear one worker, in seconds of a core for each second."""
    return costs.link + assumed.pages_per_s * costs.page


def serving_s(costs: UnitCosts, assumed: Assumed) -> float:
    """Return what all gateways together take for the requests of one worker, likewise."""
    return assumed.requests_per_s * (costs.request + (assumed.output_tokens - 1) * costs.output_token)


def needs(workers: int, costs: UnitCosts, assumed: Assumed) -> Needs:
    """Return what so many workers at their limit need."""
    fleets = math.ceil(workers / CELL)
    each = math.ceil(workers / fleets)
    hears = hearing_s(costs, assumed)
    gateways = max(1, math.ceil(each * serving_s(costs, assumed) / (ROOM - each * hears)))
    pages = each * assumed.slots / assumed.page_tokens
    redis = (
        workers * assumed.requests_per_s * costs.redis_request
        + workers * costs.redis_renewal / (assumed.ttl_s / 3)
        + fleets * gateways * costs.redis_look
    )
    return Needs(
        workers=workers,
        requests_per_s=workers * assumed.requests_per_s,
        fleets=fleets,
        hearing=each * hears,
        gateways=fleets * gateways,
        hearing_undivided=workers * hears,
        pages=pages,
        index_gb=pages * costs.page_bytes / 1e9,
        redis=redis,
    )
