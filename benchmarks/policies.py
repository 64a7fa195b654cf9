"""What each eviction policy hits, on public traces and on made ones, in pools of different sizes.

    python -m benchmarks.policies [--data FOLDER] [--json PATH] [--plot PATH]

Every run replays a whole workload through the cache, one request after the other, at page size 16 and without a host
tier (`radixgate replay` does the same for any trace). The hit rate is that of all prompt tokens, from a cold start.
Sizes are fixed for the public chat trace; for the others they are parts of what the workload fills without a limit.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from rich.console import Console
from rich.table import Table

from benchmarks import traces
from benchmarks.machine import describe_machine, write_report
from cli.replay.report import slots_text
from cli.replay.simulator import CacheSize, Workload, replay
from hicache.radix import policy

matplotlib.use("Agg")
from matplotlib import pyplot

PAGE_SIZE = 16
PARTS = (16, 4, 2)  # the pool is so many times smaller than what the workload fills
STRONG = {"lru": "black", "lhd": "crimson"}  # what the others are compared with
MOONCAKE_SLOTS = (2**18, 2**20, 2**22, 2**24)


@dataclass(frozen=True, slots=True)
class Row:
    """One workload in a pool of one size."""

    workload: str
    device_slots: int
    hit_rates: dict[str, float]  # by policy


def main() -> None:
    parser = argparse.ArgumentParser(description="Hit rates of the eviction policies.")
    parser.add_argument("--data", type=Path, default=traces.DATA, metavar="FOLDER", help="where public traces lie")
    parser.add_argument("--only", metavar="NAME", help="one workload")
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument("--plot", type=Path, metavar="PATH")
    arguments = parser.parse_args()
    console = Console()
    rows: list[Row] = []
    with console.status("replaying") as status:
        for name, load in workloads(arguments.data).items():
            if arguments.only in {None, name} and (workload := load()) is not None:
                rows += measure(name, workload, status.update)
    show(console, rows)
    if arguments.json:
        report = {
            "page_size": PAGE_SIZE,
            "rows": [
                {"workload": row.workload, "device_slots": row.device_slots, "hit_rates": row.hit_rates} for row in rows
            ],
            "machine": describe_machine(),
        }
        write_report(arguments.json, report)
    if arguments.plot:
        plot(arguments.plot, rows)


def workloads(data: Path) -> dict[str, Callable[[], Workload | None]]:
    return {
        "mooncake": lambda: traces.mooncake(data),
        "magagent": lambda: traces.agents(data, "magagent"),
        "miniswe": lambda: traces.agents(data, "miniswe"),
        "documents": traces.documents,
        "chats": traces.chats,
        "loop": traces.loop,
    }


def measure(name: str, workload: Workload, progress: Callable[[str], None]) -> list[Row]:
    rows: list[Row] = []
    sizes = MOONCAKE_SLOTS if name == "mooncake" else parts_of(workload)
    for device_slots in sizes:
        hit_rates: dict[str, float] = {}
        for each in policy.NAMES:
            progress(f"{name}, {slots_text(device_slots)} slots, {each}")
            size = CacheSize(device_slots=device_slots, page_size=PAGE_SIZE, policy=each)
            hit_rates[each] = replay(workload, size).hit_rate
        rows.append(Row(name, device_slots, hit_rates))
    return rows


def parts_of(workload: Workload) -> list[int]:
    """Return pool sizes in whole pages, smallest first, by what the workload fills without a limit."""
    run = replay(workload, CacheSize(page_size=PAGE_SIZE))
    return [run.cached_tokens // part // PAGE_SIZE * PAGE_SIZE for part in PARTS]


def show(console: Console, rows: list[Row]) -> None:
    table = Table(title=f"Hit rate by eviction policy, page size {PAGE_SIZE}, in %", title_justify="left")
    table.add_column("workload")
    table.add_column("slots", justify="right")
    for name in policy.NAMES:
        table.add_column(name, justify="right")
    for row in rows:
        best = max(row.hit_rates.values())
        cells = [
            f"[bold]{100 * rate:.2f}[/]" if rate > best - 5e-5 else f"{100 * rate:.2f}"
            for rate in row.hit_rates.values()
        ]
        table.add_row(row.workload, f"{row.device_slots:,}", *cells)
    console.print(table)


def plot(path: Path, rows: list[Row]) -> None:
    """A panel for each workload: hit rate over the size of the pool, a line for each policy."""
    names = list(dict.fromkeys(row.workload for row in rows))
    figure, axes = pyplot.subplots(2, (len(names) + 1) // 2, figsize=(13, 7), layout="constrained", squeeze=False)
    for panel, name in zip(axes.flat, names, strict=False):
        members = [row for row in rows if row.workload == name]
        for each in policy.NAMES:
            strong = each in STRONG
            panel.plot(
                [row.device_slots for row in members],
                [100 * row.hit_rates[each] for row in members],
                marker="o",
                color=STRONG.get(each),
                linewidth=2.5 if strong else 1,
                alpha=1.0 if strong else 0.6,
                label=each,
            )
        panel.set_xscale("log", base=2)
        panel.set_xticks([row.device_slots for row in members], [f"{row.device_slots:,}" for row in members])
        panel.minorticks_off()
        panel.set(title=name, xlabel="slots", ylabel="prompt tokens hit, %", ylim=(0, None))
        panel.grid(alpha=0.3)
    for panel in axes.flat[len(names) :]:
        panel.set_visible(False)
    axes.flat[0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
