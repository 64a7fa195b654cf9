"""Throughput, time to first token, time between tokens and hit rate of the whole stack under a shared-prefix load.

    python -m benchmarks.serve --json out.json --plot out.png

Starts the stack itself (`--target` and `--key` use one that runs), sends every request through the gateway over
gRPC, once with each request behind its tenant's system prompt (`shared`) and once more (`again`: whole prompts are
cached by now), and prints a table. Greedy, exact output lengths, prompts of real text from one seed.
"""

import argparse
import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from rich.console import Console
from rich.table import Table

from benchmarks.load import LoadResult, count_tokens, send_all
from benchmarks.machine import describe_machine, write_report
from benchmarks.stack import running_stack
from benchmarks.workloads import TokenText, Turn, document, shared_prefix

_ROWS = (
    ("wall_s", "wall, s"),
    ("output_tokens_per_s", "generated tokens/s"),
    ("total_tokens_per_s", "prompt + generated tokens/s"),
    ("ttft_mean_s", "time to first token, mean, s"),
    ("ttft_max_s", "time to first token, max, s"),
    ("itl_mean_ms", "between tokens, mean, ms"),
    ("hit_rate", "hit rate"),
)


def main() -> None:
    arguments = _parse()
    with ExitStack() as stack:
        if arguments.target:
            target, keys, memory, ready_after_s = arguments.target, {"given": arguments.key}, None, None
        else:
            running = stack.enter_context(running_stack(arguments.serve_argument))
            target, keys, memory = running.target, running.keys, running.memory
            ready_after_s = running.ready_after_s
        results = asyncio.run(_measure(target, keys, arguments))
        runs = {name: result.summary() for name, result in results.items()}
        report: dict[str, Any] = {
            # The cold run's figures stand at the top as well: they are what one compares with other systems.
            **runs["shared"],
            "runs": runs,
            "peak_rss_mb": memory.peak_mb if memory else None,
            "ready_after_s": ready_after_s,
            "load": {
                name: getattr(arguments, name) for name in ("requests", "prefix", "output", "concurrency", "seed")
            },
            "machine": describe_machine(),
        }
    _print(report)
    if arguments.json:
        write_report(arguments.json, report)
    if arguments.plot:
        _plot(results, arguments.plot)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=32, help="requests in all (default 32)")
    parser.add_argument("--prefix", type=int, default=1500, help="tokens of each tenant's system prompt (default 1500)")
    parser.add_argument("--output", type=int, default=32, help="tokens to generate for each (default 32)")
    parser.add_argument("--concurrency", type=int, default=32, help="requests at a time (default 32)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", help="host:port of a gateway that runs already")
    parser.add_argument("--key", help="API key for --target")
    parser.add_argument("--serve-argument", action="append", default=[], help="handed on to `radixgate serve`")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--plot", type=Path, help="write a picture here (PNG or SVG)")
    arguments = parser.parse_args()
    if bool(arguments.target) != bool(arguments.key):
        parser.error("--target and --key go together")
    return arguments


async def _measure(target: str, keys: dict[str, str], arguments: argparse.Namespace) -> dict[str, LoadResult]:
    tenants = tuple(keys)
    text = TokenText(await count_tokens(target, keys[tenants[0]], document()), arguments.seed)
    # A first short request of each tenant pays for what every process pays once (allocations, code caches).
    warm_up = [Turn(tenant, text.cut(64), 4) for tenant in tenants]
    await send_all(target, keys, warm_up, arguments.concurrency)
    turns = shared_prefix(text, tenants, arguments.requests, arguments.prefix, arguments.output)
    return {name: await send_all(target, keys, turns, arguments.concurrency) for name in ("shared", "again")}


def _print(report: dict[str, Any]) -> None:
    runs: dict[str, dict[str, float]] = report["runs"]
    table = Table(title=f"Shared-prefix load: {report['load']}", title_justify="left")
    table.add_column("")
    for name in runs:
        table.add_column(name, justify="right")
    for key, label in _ROWS:
        table.add_row(label, *(f"{figures[key]:,.3f}" for figures in runs.values()))
    console = Console()
    console.print(table)
    if report["peak_rss_mb"] is not None:
        console.print(f"peak memory {report['peak_rss_mb']:,.0f} MB, ready after {report['ready_after_s']:.1f} s")
    console.print(f"{report['machine']}")


def _plot(results: dict[str, LoadResult], path: Path) -> None:
    """Draw every request's time to first token, and the tokens delivered over time."""
    figure, (first, delivered) = pyplot.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for name, result in results.items():
        start = min(t.sent_s for t in result.timings)
        waits = sorted(t.ttft_s for t in result.timings)
        first.plot(waits, [(i + 1) / len(waits) for i in range(len(waits))], drawstyle="steps-post", label=name)
        arrivals = sorted(arrival for t in result.timings for arrival in t.arrivals)
        times, total = [0.0], [0]
        for at, tokens in arrivals:
            times.append(at - start)
            total.append(total[-1] + tokens)
        delivered.plot(
            times, total, drawstyle="steps-post", label=f"{name}: hit rate {result.summary()['hit_rate']:.0%}"
        )
    first.set(xlabel="time to first token, s", ylabel="share of requests", xlim=(0, None), ylim=(0, 1))
    delivered.set(xlabel="time, s", ylabel="tokens delivered", xlim=(0, None), ylim=(0, None))
    for axes in (first, delivered):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
