"""Runs workloads on one or two servers in turn, and turns what came back into figures.

Each repetition has text of its own, so that its cache is cold, and the same text on every server. Servers take turns
within a repetition, in alternating order: what else the machine does then hits both.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.load import Client, LoadResult, run_waves, send_all, together
from benchmarks.processes import PeakMemory
from benchmarks.workloads import TokenText, Turn, Workload

# Threads of both servers spin for about a second after their last work; only then is the other's turn.
SETTLE_S = 1.5
_COSTS = re.compile(r"(wall|ttft|ready_after|first_answer_after)(_\w+)?_s|itl_mean_ms|peak_rss_mb")
# What is kept of each phase of a workload that has several, as `wall_cold_s`.
_OF_PHASES = {"wall_s": "wall_{}_s", "ttft_mean_s": "ttft_{}_s", "cached_tokens": "cached_{}_tokens"}

Figures = dict[str, float]
Phases = dict[str, LoadResult]


@dataclass(frozen=True, slots=True)
class System:
    """A server under load. `memory` is None where it is not ours to watch."""

    name: str
    connect: Callable[[], AbstractAsyncContextManager[Client]]
    memory: PeakMemory | None


@dataclass(frozen=True, slots=True)
class Measured:
    """One workload on one system: each repetition's phases."""

    repetitions: tuple[Phases, ...]
    peak_rss_mb: float | None


async def first_answer(system: System, tenant: str) -> None:
    """Send a short request that pays for what every process pays once (allocations, code caches)."""
    async with system.connect() as client:
        await send_all(client, [Turn(tenant, tuple(range(100, 164)), 4)])


async def measure(
    systems: Sequence[System],
    workload: Workload,
    texts: Sequence[Callable[[], TokenText]],
    tenant: str,
    tell: Callable[[str], None],
) -> dict[str, Measured]:
    """Run `workload` once for each of `texts` on each system; `tell` is given a line for each run."""
    runs: dict[str, list[Phases]] = {system.name: [] for system in systems}
    async with AsyncExitStack() as stack:
        clients = {system.name: await stack.enter_async_context(system.connect()) for system in systems}
        for repetition, text in enumerate(texts):
            for system in systems if repetition % 2 == 0 else reversed(systems):
                await asyncio.sleep(SETTLE_S)
                phases = await run_waves(clients[system.name], workload.waves(text(), tenant))
                runs[system.name].append(phases)
                wall_s = together(phases.values()).wall_s
                tell(f"{repetition + 1} of {len(texts)}: {system.name} {wall_s:.2f} s")
    return {
        system.name: Measured(tuple(runs[system.name]), system.memory.peak_mb if system.memory else None)
        for system in systems
    }


def figures(measured: Measured) -> dict[str, Any]:
    """Return the medians over all repetitions by name, and each repetition's own under `repetitions`."""
    repetitions = [_figures_of(phases) for phases in measured.repetitions]
    return {
        **{name: median(one[name] for one in repetitions) for name in repetitions[0]},
        "peak_rss_mb": measured.peak_rss_mb,
        "repetitions": repetitions,
    }


def ratios(ours: Mapping[str, Any], peers: Mapping[str, Any]) -> Figures:
    """Return ours divided by the peer's for each figure of time or memory that both have."""
    return {
        name: value / peers[name]
        for name, value in ours.items()
        if _COSTS.fullmatch(name) and value and peers.get(name)
        for name, value in ours.items()
        if _COSTS.fullmatch(name) and value and peers.get(name)
    }


def _figures_of(phases: Phases) -> Figures:
    found = together(phases.values()).summary()
    if len(phases) > 1:
        for phase, result in phases.items():
            summary = result.summary()
            found |= {template.format(phase): summary[name] for name, template in _OF_PHASES.items()}
    return found
