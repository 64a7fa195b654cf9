"""What a request costs at each worker, in seconds. Values in, values out.

    cost = wait + compute + load + fetch + adapter + copy + crowd + balance

The first terms are the time until its first token. Beyond its own time, what is computed keeps others waiting and takes
the place of what they have cached: that is `copy`, the same at workers of any speed. The last terms keep work even
where nobody waits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from gateway.routing.router import USUAL_PREFILL_TOKENS_PER_S, Candidate


@dataclass(frozen=True, slots=True)
class Weights:
    """The constants of the score. `benchmarks/routing.py` shows what other values do."""

    # What a second of computing costs a request that comes alone, in seconds of waiting. 1 would look at this request
    # and no other: conversations move whenever another worker is a little less busy, and what they leave is computed
    # again and evicts what others have. On the conversation trace, where one cache of all slots hits 18.5 %, four
    # workers hit 15.2 % with 1, 17.6 with 4, 18.6 with 12, 24 and 48; the time to the first token is the same.
    compute_price: float = 24.0
    # How long a beginning that others have asked for makes a copy of it cheaper.
    popularity_half_life_s: float = 120.0
    # Cost of a second of work above the mean of all workers, of what they were given lately. Small: it outweighs
    # the beginning that all prompts share after a few requests, and a long conversation after many.
    balance_price: float = 0.1
    balance_half_life_s: float = 120.0
    # A sequence that runs or waits takes part of each step. Counted as so many prompt tokens.
    crowd_tokens: float = 32.0
    # Bringing an adapter to where it computes; workers measure it, and do not tell.
    adapter_s: float = 0.05
    # Loading and fetching, in multiples of the speed of computing, where a worker has not measured them yet.
    usual_load_speedup: float = 10.0
    usual_fetch_speedup: float = 2.0
    # Measured speeds that differ less than this are one: noise must not look like a worker that is worth avoiding.
    speed_tolerance: float = 0.25
    warm_up_s: float = 60.0


def price_of(uses: float, weights: Weights) -> float:
    """Return what a second of computing costs for a prompt whose beginning so many requests have had lately.

    One that comes alone, as turns of a conversation do, pays for a copy that nobody else is helped by. Where many come
    for the same beginning, they share what another copy costs: so it spreads until nobody is ahead.
    """
    return weights.compute_price / max(1.0, uses)


class Hit(NamedTuple):
    """What a worker has of a prompt, in tokens, by where it is read from."""

    device: int = 0
    host: int = 0  # and not on the device
    storage: int = 0  # and in neither

    @property
    def tokens(self) -> int:
        return sum(self)


class Cost(NamedTuple):
    """Of one worker. All but the hit in seconds."""

    hit: Hit
    wait_s: float
    compute_s: float
    load_s: float
    fetch_s: float
    adapter_s: float
    copy_s: float
    crowd_s: float
    balance_s: float  # below 0: it has been given less than the mean
    total_s: float

    def explanation(self) -> Mapping[str, object]:
        told: dict[str, object] = {f"{tier}_tokens": tokens for tier, tokens in self.hit._asdict().items()}
        for name, seconds in self._asdict().items():
            if name != "hit":
                told[name] = round(seconds, 6)
        return told


def prefill_speeds(candidates: Sequence[Candidate], tolerance: float) -> tuple[float, list[float]]:
    """Return what is usual, and what each is taken to compute in a second: the usual where it is hardly different, or
    not known.
    """
    known = [each.prefill_tokens_per_s for each in candidates if each.prefill_tokens_per_s > 0]
    usual = median(known) if known else USUAL_PREFILL_TOKENS_PER_S
    return usual, [
        speed if speed > 0 and abs(speed - usual) > tolerance * usual else usual
        for speed in (each.prefill_tokens_per_s for each in candidates)
    ]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is the same for a request at each worker."""

    prompt_tokens: int
    price: float  # of a second of computing; below 1: of the request's own time
    usual_speed: float  # prompt tokens in a second
    adapter: str = ""  # revision; "": none


def cost_of(candidate: Candidate, hit: Hit, wanted: Wanted, speed: float, excess_s: float, weights: Weights) -> Cost:
    """Return what a prompt costs at a worker of that speed. `excess_s` is the worker's work above the mean of all."""
    missing = max(0, wanted.prompt_tokens - sum(hit))
    wait_s = candidate.pending_tokens / speed
    compute_s = missing / speed
    # What takes longer to bring than to compute is computed.
    load_s = hit.host / max(speed, candidate.load_tokens_per_s or speed * weights.usual_load_speedup)
    fetch_s = hit.storage / max(speed, candidate.fetch_tokens_per_s or speed * weights.usual_fetch_speedup)
    adapter_s = weights.adapter_s if wanted.adapter and wanted.adapter not in candidate.resident_adapters else 0.0
    copy_s = max(0.0, wanted.price - 1.0) * missing / wanted.usual_speed
    crowd_s = candidate.sequences * weights.crowd_tokens / speed
    balance_s = weights.balance_price * excess_s
    own_s = wait_s + min(1.0, wanted.price) * compute_s + load_s + fetch_s + adapter_s
    total_s = own_s + copy_s + crowd_s + balance_s
    return Cost(hit, wait_s, compute_s, load_s, fetch_s, adapter_s, copy_s, crowd_s, balance_s, total_s)
