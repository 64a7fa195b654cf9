"""Sends requests at the same moment and times what comes back. What speaks to a server is a `Client`."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import mean, median
from typing import Protocol

from benchmarks.workloads import Tokens, Turn, Waves


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message with tokens, on the clock of `time.monotonic`."""

    at_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """One answered request."""

    sent_s: float
    arrivals: tuple[Arrival, ...]
    token_ids: Tokens  # what was generated
    prompt_tokens: int
    cached_tokens: int

    @property
    def ttft_s(self) -> float:
        return self.arrivals[0].at_s - self.sent_s

    @property
    def inter_token_s(self) -> float | None:
        """Mean time between tokens after the first message, or None where everything came at once."""
        later = sum(arrival.tokens for arrival in self.arrivals[1:])
        return (self.arrivals[-1].at_s - self.arrivals[0].at_s) / later if later else None


class Client(Protocol):
    async def answer(self, turn: Turn) -> Timing:
        """Send one request and read its answer to the end. The time of sending is taken as it leaves."""
        ...


class AnswerError(Exception):
    """A server did not generate what was asked of it: its figures would say nothing."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    wall_s: float
    timings: tuple[Timing, ...]

    def summary(self) -> dict[str, float]:
        """Return the figures of a run by the names used in every table, plot and JSON here."""
        inter_token = [t.inter_token_s for t in self.timings if t.inter_token_s is not None]
        prompt = sum(t.prompt_tokens for t in self.timings)
        cached = sum(t.cached_tokens for t in self.timings)
        completion = sum(len(t.token_ids) for t in self.timings)
        return {
            "requests": len(self.timings),
            "wall_s": self.wall_s,
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "completion_tokens": completion,
            "hit_rate": cached / prompt,
            "output_tokens_per_s": completion / self.wall_s,
            "total_tokens_per_s": (prompt + completion) / self.wall_s,
            "ttft_mean_s": mean(t.ttft_s for t in self.timings),
            "ttft_p50_s": median(t.ttft_s for t in self.timings),
            "ttft_max_s": max(t.ttft_s for t in self.timings),
            "itl_mean_ms": 1000 * mean(inter_token) if inter_token else 0.0,
        }


def together(results: Iterable[LoadResult]) -> LoadResult:
    """Return what came one after the other as one: walls add up, and what lay between them does not count."""
    results = list(results)
    return LoadResult(sum(r.wall_s for r in results), tuple(t for r in results for t in r.timings))


async def send_all(client: Client, turns: Sequence[Turn], concurrency: int | None = None) -> LoadResult:
    """Send `turns` in order, at most `concurrency` at a time, and wait for all of them. Raises AnswerError."""
    slots = asyncio.Semaphore(concurrency) if concurrency else nullcontext()

    async def send(turn: Turn) -> Timing:
        async with slots:
            return await client.answer(turn)

    started = time.monotonic()
    timings = await asyncio.gather(*(send(turn) for turn in turns))
    result = LoadResult(time.monotonic() - started, tuple(timings))
    for turn, timing in zip(turns, timings, strict=True):
        _check(turn, timing)
    return result


async def run_waves(client: Client, waves: Waves) -> dict[str, LoadResult]:
    """Run a workload to its end and return what each of its phases took. Raises AnswerError."""
    phases: dict[str, list[LoadResult]] = {}
    try:
        wave = next(waves)
        while True:
            result = await send_all(client, wave.turns)
            phases.setdefault(wave.phase, []).append(result)
            wave = waves.send([timing.token_ids for timing in result.timings])
    except StopIteration:
        return {phase: together(results) for phase, results in phases.items()}


def _check(turn: Turn, timing: Timing) -> None:
    if len(timing.token_ids) != turn.max_new_tokens:
        raise AnswerError(f"asked for exactly {turn.max_new_tokens} tokens, got {len(timing.token_ids)}")
    if timing.prompt_tokens != len(turn.token_ids):
        raise AnswerError(f"sent a prompt of {len(turn.token_ids)} tokens, {timing.prompt_tokens} were counted")
