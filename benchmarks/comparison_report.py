"""Shows the figures of workloads, beside a peer's if there is one: a table on the terminal, and bars."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

from benchmarks.workloads import TITLES

matplotlib.use("Agg")
from matplotlib import pyplot

_ROWS = (
    ("wall_s", "wall, s"),
    ("ttft_mean_s", "time to first token, mean, s"),
    ("ttft_cold_s", "time to first token, cold, s"),
    ("ttft_warm_s", "time to first token, same prefix again, s"),
    ("itl_mean_ms", "between tokens, mean, ms"),
    ("prompt_tokens", "prompt tokens"),
    ("cached_tokens", "of them cached"),
    ("peak_rss_mb", "peak memory, MB"),
)
_BARS = (("wall_s", "wall, s"), ("ttft_mean_s", "time to first token, mean, s"), ("itl_mean_ms", "between tokens, ms"))
_ABOUT_A_START = (("ready_after_s", "ready after, s"), ("first_answer_after_s", "first answer after, s"))


def print_table(report: dict[str, Any], console: Console) -> None:
    names = _systems(report)
    title = f"{report['settings']['model']}, {report['settings']['dtype']}, {report['settings']['threads']} threads"
    table = Table(title=f"{title}; medians of {report['settings']['repetitions']}", title_justify="left")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    if len(names) > 1:
        table.add_column("ratio", justify="right")
    for workload, found in report["workloads"].items():
        table.add_section()
        table.add_row(f"[bold]{workload}[/]: {TITLES[workload]}")
        for key, label in _ROWS:
            if found.get(key) is not None:
                table.add_row(label, *_cells(key, found))
    table.add_section()
    for key, label in _ABOUT_A_START:
        if report[key] is not None:
            table.add_row(label, *_cells(key, report))
    console.print(table)
    console.print(str(report["machine"]))


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw a group of bars for each workload, with a dot for each repetition."""
    figure, panels = pyplot.subplots(1, len(_BARS), figsize=(13, 4), constrained_layout=True)
    for axes, (key, label) in zip(panels, _BARS, strict=True):
        _draw_bars(axes, report, key)
        axes.set(ylabel=label, ylim=(0, None))
        axes.grid(alpha=0.3, axis="y")
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_bars(axes: Axes, report: dict[str, Any], key: str) -> None:
    names = _systems(report)
    workloads: dict[str, dict[str, Any]] = report["workloads"]
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        sides = [found if index == 0 else found["peer"] for found in workloads.values()]
        places = [group + (index - (len(names) - 1) / 2) * width for group in range(len(workloads))]
        axes.bar(places, [side[key] for side in sides], width, label=name, alpha=0.8)
        for place, side in zip(places, sides, strict=True):
            dots = [repetition[key] for repetition in side["repetitions"]]
            axes.plot([place] * len(dots), dots, "k.", markersize=4)
    axes.set_xticks(range(len(workloads)), list(workloads))


def _systems(report: dict[str, Any]) -> list[str]:
    peer = report["settings"]["peer"]
    return ["radixgate", peer] if peer else ["radixgate"]


def _cells(key: str, found: dict[str, Any]) -> list[str]:
    cells = [_number(found[key])]
    if "peer" in found:
        theirs = found["peer"].get(key)
        cells.append("–" if theirs is None else _number(theirs))
        ratio = found["ratio"].get(key)
        cells.append("" if ratio is None else f"{ratio:.2f}")
    return cells


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:,.3g}"
