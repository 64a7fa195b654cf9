"""What LoRA adapters cost: two workloads on the base model, with one adapter and with many; more adapters than places.

    python -m benchmarks.adapters --json out.json --plot out.png

`speed`: each workload on the base model, with one adapter for all requests, and with `--adapters` of them in turn.
Requests with different adapters share no KV, so the last is compared with the base model in as many cache namespaces
(`scope`): both compute the same tokens. Everything is cold in each repetition, and the sides take turns.

`places`: requests come at random moments for adapters drawn by Zipf's law, first from as many as the device has places
for, then from twice as many; how long the slowest of a hundred wait for their first token.

Adapters are made here (`--rank`, every linear layer). The stack is started here, and every request goes over gRPC.
"""

import argparse
import asyncio
import os
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import adapters_report, comparison
from benchmarks.adapter_folders import make_adapters
from benchmarks.arrivals import Arriving, moments, send_on_time
from benchmarks.comparison import System
from benchmarks.gateway_client import document_token_ids, gateway_client
from benchmarks.load import Client, Timing
from benchmarks.machine import describe_machine, write_report
from benchmarks.peers import model_folder
from benchmarks.stack import Stack, running_stack, settings
from benchmarks.workloads import TITLES, WORKLOADS, TokenText, Turn

SPEED_WORKLOADS = ("w1", "w3")


class Changed:
    """Changes each turn, in the order in which they come, before a client sends it."""

    def __init__(self, client: Client, changes: Sequence[Callable[[Turn], Turn]]) -> None:
        self._client = client
        self._changes = changes
        self._next = 0

    async def answer(self, turn: Turn) -> Timing:
        change = self._changes[self._next % len(self._changes)]
        self._next += 1
        return await self._client.answer(change(turn))


def main() -> None:
    arguments = _parse()
    console = Console(stderr=True, highlight=False)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as made:
        folders = make_adapters(model_folder(arguments.model), Path(made), arguments.adapters, arguments.rank)
        report: dict[str, Any] = {
            "speed": _speed(folders, arguments, console),
            "places": _places(folders, arguments, console),
        }
    names = ("model", "dtype", "threads", "adapters", "rank", "repetitions", "scale", "requests", "load", "seed")
    report["settings"] = {name: getattr(arguments, name) for name in names}
    report |= {"machine": describe_machine(), "load_average_before": load_before}
    adapters_report.print_tables(report, Console())
    if arguments.json:
        write_report(arguments.json, report)
    if arguments.plot:
        adapters_report.draw(report, arguments.plot)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="smollm2-135m-instruct", help="as for worker.model.model")
    add("--dtype", choices=("bf16", "fp32"), default="bf16")
    cores = len(os.sched_getaffinity(0))
    add("--threads", type=int, default=cores, help=f"of the worker (default: all {cores} cores)")
    add("--adapters", type=int, default=16, help="how many there are; the second part has places for half (default 16)")
    add("--rank", type=int, default=16)
    add("--repetitions", type=int, default=5, help="of each side (default 5)")
    add("--scale", type=float, default=1.0, help="times all sizes of the workloads, to try them out (default 1)")
    add("--requests", type=int, default=200, help="places: requests of each side and repetition (default 200)")
    add("--load", type=float, default=0.5, help="places: share of what the base model can take (default 0.5)")
    add("--seed", type=int, default=0)
    add("--json", type=Path, help="write all figures here")
    add("--plot", type=Path, help="write a picture here (PNG or SVG)")
    arguments = parser.parse_args()
    if arguments.adapters < 2 or arguments.adapters % 2:
        parser.error("--adapters must be even")
    if arguments.repetitions < 1:
        parser.error("--repetitions must be at least 1")
    return arguments


@contextmanager
def _stack_with(folders: dict[str, Path], places: int, arguments: argparse.Namespace) -> Iterator[Stack]:
    """Run a stack that has all the adapters, and room for `places` of them on the device."""
    chosen = settings(
        worker__model__model=arguments.model,
        worker__model__dtype=arguments.dtype,
        worker__model__threads=arguments.threads,
        worker__engine__max_resident_adapters=places,
        worker__cache__memory_bytes=2 << 30,
        log__level="warning",
    )
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        lines = [f'{name} = "{folder}"\n' for name, folder in folders.items()]
        file.writelines(["[worker.lora.adapters]\n", *lines])
        file.flush()
        with running_stack(["--config", file.name, *chosen]) as stack:
            yield stack


# ------------------------------------------------------------------------------------------------------------- speed


def _speed(folders: dict[str, Path], arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    names = list(folders)
    sides: dict[str, list[Callable[[Turn], Turn]]] = {
        "base": [lambda turn: turn],
        "one": [partial(replace, adapter=names[0])],
        "base_apart": [partial(replace, scope=name) for name in names],
        "many": [partial(replace, adapter=name) for name in names],
    }
    with _stack_with(folders, len(folders), arguments) as stack:
        tenant = next(iter(stack.keys))
        document_ids = asyncio.run(document_token_ids(stack.target, stack.keys))
        systems = [System(side, partial(_changed, stack, changes), None) for side, changes in sides.items()]
        for system in systems:  # every adapter is used once before anything is measured
            asyncio.run(_warm(system, tenant, len(names)))
        found = {}
        for name in SPEED_WORKLOADS:
            workload = WORKLOADS[name].scaled(arguments.scale)
            seeds = [f"{arguments.seed}/{name}/{repetition}" for repetition in range(arguments.repetitions)]
            texts = [partial(TokenText, document_ids, seed) for seed in seeds]
            tell = partial(_tell, console, name)
            measured = asyncio.run(comparison.measure(systems, workload, texts, tenant, tell))
            figures = {side: comparison.figures(measured[side]) for side in sides}
            found[name] = {
                "title": TITLES[name],
                **figures,
                "ratio_one": _paired(figures["one"], figures["base"]),
                "ratio_many": _paired(figures["many"], figures["base_apart"]),
            }
    return found


def _paired(side: dict[str, Any], base: dict[str, Any]) -> float:
    """Return the median over repetitions of how much longer a side took than its base."""
    pairs = zip(side["repetitions"], base["repetitions"], strict=True)
    return float(median(one["wall_s"] / other["wall_s"] for one, other in pairs))


@asynccontextmanager
async def _changed(stack: Stack, changes: Sequence[Callable[[Turn], Turn]]) -> AsyncIterator[Client]:
    async with gateway_client(stack.target, stack.keys) as client:
        yield Changed(client, changes)


async def _warm(system: System, tenant: str, times: int) -> None:
    async with system.connect() as client:
        for _ in range(times):
            await client.answer(Turn(tenant, tuple(range(100, 164)), 4))


def _tell(console: Console, name: str, line: str) -> None:
    console.print(f"{name} {line}")


# ------------------------------------------------------------------------------------------------------------ places


def _places(folders: dict[str, Path], arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    names = list(folders)
    half = len(names) // 2
    with _stack_with(folders, half, arguments) as stack:
        tenant = next(iter(stack.keys))
        document_ids = asyncio.run(document_token_ids(stack.target, stack.keys))
        rate = arguments.load * asyncio.run(_capacity(stack, tenant, document_ids))
        runs: dict[str, list[list[float]]] = {"fitting": [], "crowded": []}
        for repetition in range(arguments.repetitions):
            # Both sides at the same moments: what comes at once decides about the slowest.
            seed = f"{arguments.seed}/{repetition}"
            for side, some in (("fitting", names[:half]), ("crowded", names)):
                text = TokenText(document_ids, f"{seed}/{side}")
                arriving = _zipf(some, tenant, text, rate, arguments.requests, seed)
                runs[side].append(asyncio.run(_send(stack, arriving)))
                console.print(f"places {repetition + 1}: {len(some)} adapters, p99 {_p99(runs[side][-1]):.3f} s")
    found: dict[str, dict[str, Any]] = {
        side: {
            "adapters": len(some),
            # Of all repetitions together: one of two hundred requests says little.
            "ttft_p99_s": _p99([ttft for ttfts in runs[side] for ttft in ttfts]),
            "repetitions": [_p99(ttfts) for ttfts in runs[side]],
        }
        for side, some in (("fitting", names[:half]), ("crowded", names))
    }
    ratio = found["crowded"]["ttft_p99_s"] / found["fitting"]["ttft_p99_s"]
    return {"places": half, "requests_per_s": rate, **found, "ratio": ratio}


def _p99(seconds: Sequence[float]) -> float:
    return float(np.quantile(seconds, 0.99))


_PROMPT_TOKENS, _OUTPUT_TOKENS = 64, 16


async def _capacity(stack: Stack, tenant: str, document_ids: list[int]) -> float:
    """Return how many such requests a second the base model answers when all come at once."""
    text = TokenText(document_ids, "capacity")
    turns = [Turn(tenant, text.cut(_PROMPT_TOKENS), _OUTPUT_TOKENS) for _ in range(64)]
    async with gateway_client(stack.target, stack.keys) as client:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*(client.answer(turn) for turn in turns))
        return len(turns) / (loop.time() - began)


def _zipf(names: Sequence[str], tenant: str, text: TokenText, rate: float, count: int, seed: str) -> list[Arriving]:
    """Requests at random moments, `rate` a second, for the i-th adapter with a weight of 1 / i.

    The moments depend on `rate` and `seed` only.
    """
    times = moments(rate, random.Random(f"{seed}/moments"))
    weights = [1 / (number + 1) for number in range(len(names))]
    chosen = random.Random(f"{seed}/adapters").choices(names, weights, k=count)
    return [
        Arriving(next(times), Turn(tenant, text.cut(_PROMPT_TOKENS), _OUTPUT_TOKENS, adapter=name)) for name in chosen
    ]


async def _send(stack: Stack, arriving: Sequence[Arriving]) -> list[float]:
    """Send each request at its moment; return their times to the first token, in seconds."""
    async with gateway_client(stack.target, stack.keys) as client:
        return [timing.ttft_s for timing in await send_on_time(client, arriving)]


if __name__ == "__main__":
    main()
