"""Sends a trace to a fleet, in its order and as fast as its clock says, and counts what came of it."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fleet_client import FleetClient, Outcome, tokens_request
from benchmarks.fleet_processes import Fleet, total_of
from cli.replay.trace import Trace, TraceRequest

TIERS = ("device", "host", "storage")
_MOST_ERRORS = 5
_PREDICTIONS = "radixgate_gateway_predictions_total"
_DIGESTS = "radixgate_gateway_cache_digests_total"
_TOLD = {
    "predicted_right": (_PREDICTIONS, {"outcome": "right"}),  # requests, as are the next two
    "predicted_over": (_PREDICTIONS, {"outcome": "over"}),
    "predicted_under": (_PREDICTIONS, {"outcome": "under"}),
    "digests_agree": (_DIGESTS, {"outcome": "agrees"}),
    "digests_differ": (_DIGESTS, {"outcome": "differs"}),
    "event_gaps": ("radixgate_gateway_cache_event_gaps_total", {}),
    "moves": ("radixgate_gateway_moves_total", {}),
}


@dataclass(frozen=True, slots=True)
class Pace:
    """When requests are sent."""

    speed: float  # the trace's time passes so many times faster
    max_in_flight: int  # more wait, in order


@dataclass(slots=True)
class Replayed:
    """What came of all requests, as their client saw it."""

    requests: int = 0
    prompt_tokens: int = 0
    cached: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    output_tokens: int = 0
    errors: list[str] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    most_in_flight: int = 0
    late_s: float = 0.0  # how far behind the trace's clock a request was sent, at most
    wall_s: float = 0.0

    def take(self, outcome: Outcome) -> None:
        self.requests += 1
        if outcome.usage is None:
            self.errors.append(outcome.error)
            return
        self.prompt_tokens += outcome.usage.prompt_tokens
        self.output_tokens += outcome.num_tokens
        for tier in TIERS:
            self.cached[tier] += getattr(outcome.usage.cached, tier)
        if outcome.first_s is not None:
            self.first_token_s.append(outcome.first_s - outcome.sent_s)


def requests_of(trace: Trace, num_requests: int | None, recorded_outputs: bool) -> Iterator[tuple[TraceRequest, int]]:
    """Yield requests in order, with the tokens that each is to put out: one, or as many as were recorded."""
    lengths = _output_lengths(trace.path) if recorded_outputs else None
    for number, request in enumerate(trace):
        if number == num_requests:
            return
        yield request, next(lengths) if lengths is not None else 1


def _output_lengths(path: Path) -> Iterator[int]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.isspace():
                fields = json.loads(line)
                yield max(1, fields.get("output_length", len(fields.get("output_token_ids", ()))))


async def replay(
    client: FleetClient,
    requests: Iterator[tuple[TraceRequest, int]],
    pace: Pace,
    on_progress: Callable[[int], None] = lambda num_requests: None,
) -> Replayed:
    """Send all requests and wait for their ends."""
    replayed = Replayed()
    places = asyncio.Semaphore(pace.max_in_flight)
    running: set[asyncio.Task[None]] = set()

    async def ask(request: TraceRequest, num_tokens: int) -> None:
        try:
            replayed.take(await client.ask(tokens_request(request.prompt.tolist(), num_tokens)))
            on_progress(replayed.requests)
        finally:
            places.release()

    began_at, first_at = time.monotonic(), None
    for request, num_tokens in requests:
        first_at = request.timestamp_s if first_at is None else first_at
        due_at = began_at + (request.timestamp_s - first_at) / pace.speed
        if (early_s := due_at - time.monotonic()) > 0:
            await asyncio.sleep(early_s)
        await places.acquire()
        replayed.late_s = max(replayed.late_s, time.monotonic() - due_at)
        task = asyncio.create_task(ask(request, num_tokens))
        running.add(task)
        task.add_done_callback(running.discard)
        replayed.most_in_flight = max(replayed.most_in_flight, len(running))
        await asyncio.sleep(0)
    await asyncio.gather(*running)
    replayed.wall_s = time.monotonic() - began_at
    return replayed


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor time and counters of a fleet at one moment."""

    gateways_s: float
    workers_s: tuple[float, ...]
    client_s: float
    prompt_tokens: tuple[float, ...]  # by worker, as are the next two
    computed_tokens: tuple[float, ...]
    cached: tuple[dict[str, float], ...]
    told: dict[str, float]  # what gateways counted of their choices, by the names of `_TOLD`

    @classmethod
    def now(cls, fleet: Fleet) -> "Spent":
        members = (*fleet.gateways, *fleet.workers)
        cpu_s = [member.cpu_s() for member in members]  # before it costs them something to tell the rest
        client_s = time.process_time()
        pages = [member.page() for member in members]
        of_gateways, of_workers = pages[: len(fleet.gateways)], pages[len(fleet.gateways) :]
        return cls(
            gateways_s=sum(cpu_s[: len(fleet.gateways)]),
            workers_s=tuple(cpu_s[len(fleet.gateways) :]),
            client_s=client_s,
            prompt_tokens=tuple([total_of(page, "radixgate_prompt_tokens_total") for page in of_workers]),
            computed_tokens=tuple([total_of(page, "radixgate_computed_prompt_tokens_total") for page in of_workers]),
            cached=tuple(
                [
                    {tier: total_of(page, "radixgate_cached_tokens_total", tier=tier) for tier in TIERS}
                    for page in of_workers
                ]
            ),
            told={
                name: sum(total_of(page, metric, **labels) for page in of_gateways)
                for name, (metric, labels) in _TOLD.items()
            },
        )


class AccountsDifferError(RuntimeError):
    """What clients were told is not what workers have counted."""


def figures(replayed: Replayed, before: Spent, after: Spent) -> dict[str, Any]:
    """Return the figures of a replay by name. Raises AccountsDifferError."""
    computed = _differences(before.computed_tokens, after.computed_tokens)
    prompts = sum(_differences(before.prompt_tokens, after.prompt_tokens))
    cached = {
        tier: sum(now[tier] - then[tier] for then, now in zip(before.cached, after.cached, strict=True))
        for tier in TIERS
    }
    if not replayed.errors and (prompts, cached) != (replayed.prompt_tokens, replayed.cached):
        raise AccountsDifferError(
            f"clients were told of {replayed.prompt_tokens} prompt tokens, {replayed.cached} of them cached; workers "
            f"counted {prompts:.0f} and {cached}"
        )
    told = {name: after.told[name] - before.told[name] for name in _TOLD}
    requests = max(1, replayed.requests)
    cpu = {
        "gateways": after.gateways_s - before.gateways_s,
        "workers": sum(_differences(before.workers_s, after.workers_s)),
        "client": after.client_s - before.client_s,
    }
    return {
        "requests": replayed.requests,
        "errors": len(replayed.errors),
        "first_errors": replayed.errors[:_MOST_ERRORS],
        "prompt_tokens": replayed.prompt_tokens,
        "output_tokens": replayed.output_tokens,
        "hit_rate": sum(replayed.cached.values()) / max(1, replayed.prompt_tokens),
        "hit_rate_of_workers": sum(cached.values()) / max(1, prompts),
        "cached_tokens": replayed.cached,
        "computed_by_worker": computed,
        "computed_max_to_mean": max(computed) / max(1e-9, sum(computed) / len(computed)),
        "predictions_right": told["predicted_right"] / max(1, sum(told[name] for name in _TOLD if "predicted" in name)),
        "gateways_told": told,
        "wall_s": replayed.wall_s,
        "requests_per_s": replayed.requests / max(1e-9, replayed.wall_s),
        "late_s": replayed.late_s,
        "most_in_flight": replayed.most_in_flight,
        "first_token_s": _quantiles(replayed.first_token_s),
        "cpu_s": cpu,
        "cpu_ms_per_request": {name: seconds * 1000 / requests for name, seconds in cpu.items()},
        "cpu_us_per_1000_tokens": {
            name: seconds * 1e9 / max(1, replayed.prompt_tokens) for name, seconds in cpu.items()
        },
    }


def _differences(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [now - then for then, now in zip(before, after, strict=True)]


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    return {f"p{share}": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 90, 99)}
