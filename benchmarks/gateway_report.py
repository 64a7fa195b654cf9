"""What `benchmarks.gateway` has measured, as a table and as a picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from rich.console import Console
from rich.table import Table

matplotlib.use("Agg")
from matplotlib import pyplot


def rows(report: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return what to show of a report: a title, and a figure for each side."""
    return [
        (title, [form.format(report[section][side][name]) for side in report["paced"]])
        for title, section, name, form in (
            ("of one core, paced", "paced", "core", "{:.1%}"),
            ("messages to clients, paced", "paced", "messages", "{:,.0f}"),
            ("longest gap of a paced stream, p99, ms", "paced", "longest_gap_ms", "{:.0f}"),
            ("tokens for each second of processor, unpaced", "unpaced", "tokens_per_cpu_s", "{:,.0f}"),
            ("added to the first token, p50, ms", "first_token_ms", "added_p50", "{:.2f}"),
            ("added to the first token, p99, ms", "first_token_ms", "added_p99", "{:.2f}"),
        )
    ]


def print_table(report: Mapping[str, Any], console: Console) -> None:
    title = "What stands between clients and a worker"
    table = Table("", *report["paced"], box=None, header_style="bold", title=title)
    for name, figures in rows(report):
        table.add_row(name, *figures)
    console.print(table)


def draw(report: Mapping[str, Any], path: Path) -> None:
    names = list(report["paced"])
    settings = report["settings"]
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    parts = (
        (f"of one core, {settings['streams']} x {settings['rate']:g} tokens/s",
         [100 * report["paced"][name]["core"] for name in names], "%", 30.0),
        ("tokens for each second of processor",
         [report["unpaced"][name]["tokens_per_cpu_s"] for name in names], "", None),
        ("added to the first token, p50",
         [report["first_token_ms"][name]["added_p50"] for name in names], "ms", 2.0),
    )  # fmt: skip
    colours = ["#2a7f62" if name.startswith("gateway") else "#b8b8b8" for name in names]
    for axis, (title, values, unit, target) in zip(axes, parts, strict=True):
        bars = axis.bar([name.replace(" ", "\n") for name in names], values, color=colours)
        axis.bar_label(bars, labels=[f"{value:,.3g} {unit}" if value < 1000 else f"{value:,.0f}" for value in values])
        axis.set_title(title, fontsize=10)
        axis.margins(y=0.15)
        if target is not None:
            axis.axhline(target, color="#b03030", linestyle="--", linewidth=1)
            axis.annotate("target", (0.02, target), xycoords=("axes fraction", "data"), color="#b03030", fontsize=8,
                          va="bottom")  # fmt: skip
    figure.savefig(path, dpi=120)
