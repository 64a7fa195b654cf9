"""Two tenants, each with a system prompt of its own that all its requests share; then the same requests once more."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from rich.console import Console
from rich.table import Table

from benchmarks.gateway_client import gateway_client
from benchmarks.load import LoadResult, send_all
from benchmarks.workloads import TokenText, Turn, document, shared_prefix

matplotlib.use("Agg")
from matplotlib import pyplot

_ROWS = (
    ("wall_s", "wall, s"),
    ("output_tokens_per_s", "generated tokens/s"),
    ("total_tokens_per_s", "prompt + generated tokens/s"),
    ("ttft_mean_s", "time to first token, mean, s"),
    ("ttft_max_s", "time to first token, max, s"),
    ("itl_mean_ms", "between tokens, mean, ms"),
    ("hit_rate", "hit rate"),
)


@dataclass(frozen=True, slots=True)
class Load:
    """Sizes in tokens."""

    requests: int
    prefix: int
    output: int
    concurrency: int
    seed: int


async def run(target: str, keys: dict[str, str], load: Load) -> dict[str, LoadResult]:
    """Return the results of both runs, `shared` (cold) and `again`."""
    tenants = tuple(keys)
    async with gateway_client(target, keys) as client:
        text = TokenText(await client.token_ids(document(), tenants[0]), load.seed)
        # A first short request of each tenant pays for what every process pays once (allocations, code caches).
        await send_all(client, [Turn(tenant, text.cut(64), 4) for tenant in tenants], load.concurrency)
        turns = shared_prefix(text, tenants, load.requests, load.prefix, load.output)
        return {name: await send_all(client, turns, load.concurrency) for name in ("shared", "again")}


def print_table(report: dict[str, Any], console: Console) -> None:
    runs: dict[str, dict[str, float]] = report["runs"]
    table = Table(title=f"Shared-prefix load: {report['load']}", title_justify="left")
    table.add_column("")
    for name in runs:
        table.add_column(name, justify="right")
    for key, label in _ROWS:
        table.add_row(label, *(f"{figures[key]:,.3f}" for figures in runs.values()))
    console.print(table)
    if report["peak_rss_mb"] is not None:
        console.print(f"peak memory {report['peak_rss_mb']:,.0f} MB, ready after {report['ready_after_s']:.1f} s")
    console.print(f"{report['machine']}")


def draw(results: dict[str, LoadResult], path: Path) -> None:
    """Draw every request's time to first token, and the tokens delivered over time."""
    figure, (first, delivered) = pyplot.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for name, result in results.items():
        start = min(t.sent_s for t in result.timings)
        waits = sorted(t.ttft_s for t in result.timings)
        first.plot(waits, [(i + 1) / len(waits) for i in range(len(waits))], drawstyle="steps-post", label=name)
        times, total = [0.0], [0]
        for arrival in sorted((arrival for t in result.timings for arrival in t.arrivals), key=lambda a: a.at_s):
            times.append(arrival.at_s - start)
            total.append(total[-1] + arrival.tokens)
        delivered.plot(
            times, total, drawstyle="steps-post", label=f"{name}: hit rate {result.summary()['hit_rate']:.0%}"
        )
    first.set(xlabel="time to first token, s", ylabel="share of requests", xlim=(0, None), ylim=(0, 1))
    delivered.set(xlabel="time, s", ylabel="tokens delivered", xlim=(0, None), ylim=(0, None))
    for axes in (first, delivered):
        axes.grid(alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
