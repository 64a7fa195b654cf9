"""Shows time to the first token against the share that is cached: a table on the terminal, a picture in a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.ttft_model import TtftModel, Work

matplotlib.use("Agg")
from matplotlib import pyplot


def print_table(report: dict[str, Any], console: Console) -> None:
    table = Table(title="Time to the first token, one request at a time", title_justify="left")
    for name in ("prompt", "cached", "computed", "measured", "model", "off by"):
        table.add_column(name, justify="right")
    for point in report["points"]:
        table.add_row(
            f"{point['prompt_tokens']:,}",
            f"{point['cached_tokens']:,}",
            f"{point['computed_tokens']:,}",
            f"{1e3 * point['ttft_s']:,.1f} ms",
            f"{1e3 * point['predicted_s']:,.1f} ms",
            f"{point['deviation']:+.1%}",
        )
    console.print(table)
    console.print(f"model: {formula(report)}; off by {report['max_deviation']:.1%} at worst", highlight=False)


def formula(report: Mapping[str, Any]) -> str:
    model = report["model"]
    return (
        f"{1e3 * model['fixed_s']:.1f} ms + {1e6 * model['per_token_s']:.1f} µs a computed token"
        f" + {1e9 * model['per_pair_s']:.1f} ns a pair"
    )


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw what was measured as points, each repetition small, and the model as a curve for each prompt length."""
    model = TtftModel(**report["model"])
    figure, axes = pyplot.subplots(figsize=(8, 5), constrained_layout=True)
    lengths = sorted({point["prompt_tokens"] for point in report["points"]})
    for index, length in enumerate(lengths):
        points = [point for point in report["points"] if point["prompt_tokens"] == length]
        color = f"C{index}"
        cached = np.linspace(0, length - 1, 200)
        axes.plot(cached / length, [model.ttft_s(Work(length, round(each))) for each in cached], color=color)
        ratios = [point["cached_tokens"] / length for point in points]
        axes.plot(ratios, [point["ttft_s"] for point in points], "o", color=color, label=f"{length:,} tokens")
        for ratio, point in zip(ratios, points, strict=True):
            axes.plot([ratio] * len(point["ttfts_s"]), point["ttfts_s"], ".", color=color, alpha=0.4, markersize=4)
    axes.set(xlabel="share of the prompt that is cached", ylabel="time to first token, s", yscale="log")
    axes.set_title(f"points: measured; curves: {formula(report)}", fontsize=9)
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
