"""How the benchmark of copies shows its figures: tables for the terminal, a picture for a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine

Row = dict[str, Any]


def show(console: Console, bandwidths: Sequence[Row], disturbances: Sequence[Row]) -> None:
    table = Table(title="Copies between device and host, GB/s", title_justify="left")
    for name in ("direction", "run", "thread", "contiguous", "thread / contiguous", "page first"):
        table.add_column(name, justify="left" if name == "direction" else "right")
    for row in bandwidths:
        figures = (
            f"{row['thread']:.1f}",
            f"{row['contiguous']:.1f}",
            f"{row['ratio']:.0%}",
            f"{row['page_first']:.1f}",
        )
        table.add_row(row["direction"], f"{row['run_tokens']:,}", *figures)
    console.print(table)
    if disturbances:
        beside = Table(title="A decode step beside mirrors", title_justify="left")
        for name in ("duty", "alone", "beside", "loss", "mirrored tokens/s"):
            beside.add_column(name, justify="right")
        for row in disturbances:
            times = (f"{row['alone_ms']:.1f} ms", f"{row['beside_ms']:.1f} ms", f"{row['loss']:.1%}")
            beside.add_row(f"{row['duty']:g}", *times, f"{row['mirrored_tokens_per_s']:,.0f}")
        console.print(beside)
    console.print(", ".join(f"{name} {value}" for name, value in describe_machine().items()), style="dim")


def plot(path: Path, bandwidths: Sequence[Row], disturbances: Sequence[Row]) -> None:
    figure, (mirror, load, beside) = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for axes, direction in ((mirror, "mirror"), (load, "load")):
        rows = [row for row in bandwidths if row["direction"] == direction]
        runs = [str(row["run_tokens"]) for row in rows]
        for name, style in (("contiguous", "k--"), ("thread", "o-"), ("page_first", "s:")):
            axes.plot(runs, [row[name] for row in rows], style, label=name.replace("_", " "))
        axes.set(title=direction, xlabel="slots in a run", ylabel="GB/s", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    duties = [f"{row['duty']:g}" for row in disturbances]
    bars = beside.bar(duties, [100 * row["loss"] for row in disturbances], color="tab:red")
    beside.bar_label(bars, [f"{row['mirrored_tokens_per_s'] / 1e3:,.0f}k tokens/s" for row in disturbances], fontsize=8)
    beside.set(title="decode beside mirrors", xlabel="duty of the copying thread", ylabel="steps per second lost, %")
    beside.margins(y=0.15)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
