"""What a tenant notices of another one's flood: its times to the first token, alone and beside it.

    python -m benchmarks.flood --json out.json --plot out.png

The guest sends a request now and then, at random moments. The other tenant keeps `--flood` requests under way, each
with a prompt and a long answer of its own, more than there are places for. Both share one worker; alone and beside
alternate.
The stack is started here, and every request goes over gRPC.
"""

import argparse
import asyncio
import os
import random
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.arrivals import Arriving, moments, send_on_time
from benchmarks.gateway_client import GatewayClient, document_token_ids, gateway_client
from benchmarks.machine import describe_machine, write_report
from benchmarks.stack import Stack, running_stack, settings
from benchmarks.workloads import TokenText, Turn

matplotlib.use("Agg")
from matplotlib import pyplot

SIDES = ("alone", "beside")


def main() -> None:
    arguments = _parse()
    console = Console(stderr=True, highlight=False)
    load_before = os.getloadavg()[0]
    chosen = settings(
        worker__model__model=arguments.model,
        worker__model__threads=arguments.threads,
        worker__cache__memory_bytes=3 << 30,
        log__level="warning",
    )
    with running_stack([*chosen, *arguments.serve_argument]) as stack:
        measured = asyncio.run(_measure(stack, arguments, console))
    names = ("model", "threads", "requests", "rate", "prompt", "output", "flood", "flood_prompt", "flood_output")
    report = {
        **_figures(measured),
        "settings": {name: getattr(arguments, name) for name in (*names, "repetitions", "seed", "serve_argument")},
        "machine": describe_machine(),
        "load_average_before": load_before,
    }
    _print_table(report, Console())
    if arguments.json:
        write_report(arguments.json, report)
    if arguments.plot:
        _draw(report, arguments.plot)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="smollm2-135m-instruct", help="as for worker.model.model")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the worker (default: all cores)")
    add("--requests", type=int, default=60, help="of the guest, on each side of a repetition (default 60)")
    add("--rate", type=float, default=1.0, help="requests of the guest a second (default 1)")
    add("--prompt", type=int, default=512, help="tokens of each of the guest's prompts (default 512)")
    add("--output", type=int, default=8, help="tokens of each of the guest's answers (default 8)")
    add("--flood", type=int, default=64, help="requests of the other tenant at a time (default 64)")
    add("--flood-prompt", type=int, default=512)
    add("--flood-output", type=int, default=64)
    add("--repetitions", type=int, default=3)
    add("--seed", type=int, default=0)
    add("--serve-argument", action="append", default=[], help="handed on to `radixgate serve`")
    add("--json", type=Path, help="write all figures here")
    add("--plot", type=Path, help="write a picture here (PNG or SVG)")
    return parser.parse_args()


async def _measure(stack: Stack, arguments: argparse.Namespace, console: Console) -> dict[str, list[list[float]]]:
    """Return the guest's times to the first token, in seconds, of each repetition of each side."""
    other, guest = sorted(stack.keys)[:2]
    measured: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    text = TokenText(await document_token_ids(stack.target, stack.keys), arguments.seed)
    async with gateway_client(stack.target, stack.keys) as client:
        for repetition in range(arguments.repetitions):
            for side in SIDES:
                flood = asyncio.create_task(_flood(client, other, text, arguments)) if side == "beside" else None
                await asyncio.sleep(2.0)  # until the flood stands, and it's as long without
                found = await _guest(client, guest, text, arguments, f"{arguments.seed}/{repetition}")
                if flood is not None:
                    flood.cancel()
                    with suppress(asyncio.CancelledError):
                        await flood
                measured[side].append(found)
                console.print(
                    f"{repetition + 1} {side}: p50 {np.median(found):.3f} s, p99 {np.quantile(found, 0.99):.3f} s"
                )
    return measured


async def _guest(
    client: GatewayClient, tenant: str, text: TokenText, arguments: argparse.Namespace, seed: str
) -> list[float]:
    times = moments(arguments.rate, random.Random(seed))
    arriving = [
        Arriving(next(times), Turn(tenant, text.cut(arguments.prompt), arguments.output))
        for _ in range(arguments.requests)
    ]
    return [timing.ttft_s for timing in await send_on_time(client, arriving)]


async def _flood(client: GatewayClient, tenant: str, text: TokenText, arguments: argparse.Namespace) -> None:
    """Keep so many requests under way until cancelled."""

    async def one_after_another() -> None:
        while True:
            await client.answer(Turn(tenant, text.cut(arguments.flood_prompt), arguments.flood_output))

    await asyncio.gather(*(one_after_another() for _ in range(arguments.flood)))


def _figures(measured: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Return quantiles of each side, medians over repetitions, and how much longer it takes beside the flood."""
    quantiles = {"ttft_p50_s": 0.5, "ttft_p99_s": 0.99}
    of_each = {
        side: [{name: float(np.quantile(ttfts, q)) for name, q in quantiles.items()} for ttfts in repetitions]
        for side, repetitions in measured.items()
    }
    ratios = {
        f"ratio_{name}": float(
            median(two[name] / one[name] for one, two in zip(of_each["alone"], of_each["beside"], strict=True))
        )
        for name in ("ttft_p50_s", "ttft_p99_s")
    }
    sides = {
        side: {name: float(median(one[name] for one in found)) for name in quantiles} | {"repetitions": found}
        for side, found in of_each.items()
    }
    return {**sides, **ratios}


def _print_table(report: dict[str, Any], console: Console) -> None:
    table = Table(title="The guest's time to the first token", title_justify="left")
    for column in ("", "p50, s", "p99, s"):
        table.add_column(column, justify="left" if column == "" else "right")
    for side in SIDES:
        table.add_row(side, f"{report[side]['ttft_p50_s']:.3f}", f"{report[side]['ttft_p99_s']:.3f}")
    table.add_row("ratio", f"{report['ratio_ttft_p50_s']:.2f}", f"{report['ratio_ttft_p99_s']:.2f}")
    console.print(table)
    console.print(str(report["machine"]))


def _draw(report: dict[str, Any], path: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(6, 4), constrained_layout=True)
    for index, side in enumerate(SIDES):
        places = [group + (index - 0.5) * 0.4 for group in range(2)]
        axes.bar(places, [report[side][name] for name in ("ttft_p50_s", "ttft_p99_s")], 0.4, label=side, alpha=0.8)
        for place, name in zip(places, ("ttft_p50_s", "ttft_p99_s"), strict=True):
            dots = [one[name] for one in report[side]["repetitions"]]
            axes.plot([place] * len(dots), dots, "k.", markersize=4)
    axes.set_xticks((0, 1), ["p50", "p99"])
    axes.set(ylabel="time to the first token, s", ylim=(0, None))
    axes.grid(alpha=0.3, axis="y")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
