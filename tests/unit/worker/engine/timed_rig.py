"""An engine whose steps take as long as their tokens, driven by requests that arrive at given times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.unit.worker.engine.harness import Rig, make_request
from tests.unit.worker.engine.waiting_sequences import namespace_of
from worker.config import EngineConfig
from worker.engine import Request, SequenceId

# Seconds, as a small model takes on two cores.
_STEP_S = 0.014
_TOKEN_S = 0.00032


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    request: Request


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of prompts and outputs: half-open ranges."""

    prompt: tuple[int, int]
    output: tuple[int, int]


def traffic(
    tenant: str, number: int, times: Sequence[float], lengths: Lengths, seed: int, weight: float = 1.0
) -> list[Arrival]:
    """Return a tenant's requests, numbered from `number` on, that arrive at `times`."""
    rng = np.random.default_rng(seed)
    arrivals = []
    for index, at in enumerate(times):
        prompt = rng.integers(0, 1000, int(rng.integers(*lengths.prompt)))
        request = make_request(
            number + index,
            prompt.tolist(),
            max_new_tokens=int(rng.integers(*lengths.output)),
            tenant=tenant,
            namespace=namespace_of(tenant),
        )
        arrivals.append(Arrival(at, replace(request, weight=weight)))
    return arrivals


def poisson(num_requests: int, per_second: float, start: float, seed: int) -> list[float]:
    gaps = np.random.default_rng(seed).exponential(1 / per_second, num_requests)
    return [start + float(at) for at in np.cumsum(gaps)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds to the first token by sequence, and the engine as it is then."""

    ttfts: dict[SequenceId, float]
    rig: Rig

    def percentile(self, arrivals: Sequence[Arrival], percent: float) -> float:
        return float(np.percentile([self.ttfts[arrival.request.sequence_id] for arrival in arrivals], percent))


def serve(arrivals: Sequence[Arrival], awaited: Sequence[Arrival], config: EngineConfig, num_slots: int) -> Outcome:
    """Run until each of those awaited has its first token."""
    rig = Rig(num_slots, config=config)

    def take_time() -> None:
        rig.now += _STEP_S + _TOKEN_S * rig.executor.batches.pop().num_tokens

    rig.executor.before_run = take_time
    pending = sorted(arrivals, key=lambda arrival: arrival.at, reverse=True)
    arrived = {arrival.request.sequence_id: arrival.at for arrival in arrivals}
    open_ids = {arrival.request.sequence_id for arrival in awaited}
    ttfts: dict[SequenceId, float] = {}
    while open_ids:
        if not rig.engine.has_work:
            rig.now = max(rig.now, pending[-1].at)
        while pending and pending[-1].at <= rig.now:
            rig.engine.submit(pending.pop().request, rig.now)
        for output in rig.engine.step(rig.now):
            if output.token_ids and output.sequence_id not in ttfts:
                ttfts[output.sequence_id] = rig.now - arrived[output.sequence_id]
                open_ids.discard(output.sequence_id)
    return Outcome(ttfts, rig)
