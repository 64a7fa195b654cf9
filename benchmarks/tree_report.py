"""How the tree benchmark shows its rows: a table for the terminal, a picture for a file."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe_machine


def show(console: Console, rows: dict[str, float], remarks: dict[str, str], scaling: dict[int, float]) -> None:
    table = Table(title="Radix cache", title_justify="left")
    table.add_column("row")
    table.add_column("value", justify="right")
    table.add_column("", style="dim")
    for name, value in rows.items():
        table.add_row(name, f"{value:,.2f}" if value < 1000 else f"{value:,.0f}", remarks.get(name, ""))
    console.print(table)
    scaled = Table(title="Evicting one leaf", title_justify="left")
    for leaves in scaling:
        scaled.add_column(f"of {leaves:,}", justify="right")
    scaled.add_row(*(f"{value:.2f} µs" for value in scaling.values()))
    console.print(scaled)
    console.print(", ".join(f"{name} {value}" for name, value in describe_machine().items()), style="dim")


def plot(path: Path, rows: dict[str, float], scaling: dict[int, float]) -> None:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    names = [name for name in rows if name.endswith("_us")]
    left.barh([name.removesuffix("_us") for name in names], [rows[name] for name in names], color="tab:blue")
    for index, name in enumerate(names):
        left.text(rows[name], index, f" {rows[name]:.1f}", va="center", fontsize=8)
    left.invert_yaxis()
    left.margins(x=0.15)
    left.set(title="One operation", xlabel="µs", xscale="log")
    right.plot(list(scaling), list(scaling.values()), marker="o")
    right.set(title="Evicting one leaf", xlabel="leaves in the tree", ylabel="µs", xscale="log", ylim=(0, None))
    right.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
