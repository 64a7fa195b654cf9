"""Shows what adapters cost: tables on the terminal, and a picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from rich.console import Console
from rich.table import Table

matplotlib.use("Agg")
from matplotlib import pyplot

SIDES = {
    "base": "base model",
    "one": "one adapter",
    "base_apart": "base model, as many namespaces",
    "many": "{} adapters",
}


def labels(report: Mapping[str, Any]) -> dict[str, str]:
    return {side: label.format(report["settings"]["adapters"]) for side, label in SIDES.items()}


def print_tables(report: dict[str, Any], console: Console) -> None:
    settings = report["settings"]
    title = f"{settings['model']}, {settings['dtype']}, rank {settings['rank']}; medians of {settings['repetitions']}"
    table = Table(title=title, title_justify="left")
    for column in ("", "wall, s", "to base", "first token, mean, s", "between tokens, ms"):
        table.add_column(column, justify="left" if column == "" else "right")
    for name, found in report["speed"].items():
        table.add_section()
        table.add_row(f"[bold]{name}[/]: {found['title']}")
        ratios = {"one": found["ratio_one"], "many": found["ratio_many"]}
        for side, label in labels(report).items():
            ratio = f"{ratios[side]:.2f}" if side in ratios else ""
            figures = found[side]
            table.add_row(
                label,
                f"{figures['wall_s']:.2f}",
                ratio,
                f"{figures['ttft_mean_s']:.2f}",
                f"{figures['itl_mean_ms']:.1f}",
            )
    console.print(table)
    places = report["places"]
    for side in ("fitting", "crowded"):
        found = places[side]
        many = f"{found['adapters']} adapters, {places['places']} places"
        console.print(f"{many}: p99 to the first token {found['ttft_p99_s']:.3f} s")
    console.print(f"ratio {places['ratio']:.2f}, at {places['requests_per_s']:.1f} requests a second")
    console.print(str(report["machine"]))


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the wall time of each side of each workload, and the p99 with enough places and too few."""
    speed = report["speed"]
    figure, (walls, waits) = pyplot.subplots(
        1, 2, figsize=(11, 4), constrained_layout=True, gridspec_kw={"width_ratios": [2, 1]}
    )
    sides = labels(report)
    width = 0.8 / len(sides)
    for index, (side, label) in enumerate(sides.items()):
        places = [group + (index - (len(sides) - 1) / 2) * width for group in range(len(speed))]
        walls.bar(places, [found[side]["wall_s"] for found in speed.values()], width, label=label, alpha=0.8)
        for place, found in zip(places, speed.values(), strict=True):
            dots = [repetition["wall_s"] for repetition in found[side]["repetitions"]]
            walls.plot([place] * len(dots), dots, "k.", markersize=4)
    walls.set_xticks(range(len(speed)), [f"{name}:\n{found['title']}" for name, found in speed.items()])
    walls.set(ylabel="wall, s", ylim=(0, None))
    walls.legend()
    found = report["places"]
    for place, side in enumerate(("fitting", "crowded")):
        waits.bar(place, 1000 * found[side]["ttft_p99_s"], 0.6, alpha=0.8)
        waits.plot([place] * len(found[side]["repetitions"]), [1000 * s for s in found[side]["repetitions"]], "k.")
    waits.set_xticks(
        (0, 1), [f"{found[side]['adapters']} on {found['places']} places" for side in ("fitting", "crowded")]
    )
    waits.set(ylabel="p99 to the first token, ms", ylim=(0, None))
    for axes in (walls, waits):
        axes.grid(alpha=0.3, axis="y")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
