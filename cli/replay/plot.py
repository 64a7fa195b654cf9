"""Draws replays. The only module of the command line that needs matplotlib; loaded when a picture is asked for."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

from cli.replay.report import label, slots_text
from cli.replay.simulator import Replay

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.ticker import MaxNLocator, PercentFormatter

_MAX_WINDOWS = 60  # along the time axis
_MIN_WINDOW = 16  # requests in each, on average
_MAX_OVER_TIME = 10  # runs; lines of more than that hide each other
_MAX_WINDOWED = 3  # runs; windows of more than that hide each other
_DEVICE, _HOST = "tab:blue", "tab:orange"

_FloatArray = NDArray[np.float64]


def plot(path: Path, trace: Path, runs: Sequence[Replay]) -> None:
    """Write a picture: one run's hit rate by tier over time, or what several hit, over time and by size."""
    both = 1 < len(runs) <= _MAX_OVER_TIME
    figure, axes = pyplot.subplots(1, 1 + both, figsize=(11, 4.2), layout="constrained", squeeze=False)
    figure.suptitle(trace.name)
    if len(runs) == 1:
        _draw_tiers(axes[0, 0], runs[0])
    else:
        _draw_by_size(axes[0, -1], runs)
    if both:
        _draw_over_time(axes[0, 0], runs)
    for each in axes.flat:
        each.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _draw_tiers(axes: Any, run: Replay) -> None:
    """Both tiers in windows, stacked, and the rate of all requests so far."""
    minutes, (device, host) = _windowed(run, [run.device_hits, run.host_hits])
    axes.stackplot(
        minutes,
        [device, host] if run.cache.host_slots else [device],
        labels=["device", "host"] if run.cache.host_slots else ["device"],
        colors=[_DEVICE, _HOST],
        alpha=0.45,
    )
    axes.plot(run.timestamps_s / 60, _cumulative(run), color="black", label="all so far")
    host_text = f" + {slots_text(run.cache.host_slots)} host" if run.cache.host_slots else ""
    axes.set(
        title=f"{run.cache.policy}, {slots_text(run.cache.device_slots)} device{host_text} slots: {run.hit_rate:.2%}",
        xlabel="minutes of the trace",
        ylabel="prompt tokens hit",
        ylim=(0, None),
    )
    axes.margins(x=0)
    _in_percent(axes.yaxis)
    axes.legend(loc="upper left")


def _draw_over_time(axes: Any, runs: Sequence[Replay]) -> None:
    """The rate of all requests so far, run by run, and that of single windows behind it while there are few runs."""
    for run in runs:
        minutes, (rate,) = _windowed(run, [run.device_hits + run.host_hits])
        (line,) = axes.plot(run.timestamps_s / 60, _cumulative(run), label=label(run, runs))
        if len(runs) <= _MAX_WINDOWED:
            axes.plot(minutes, rate, color=line.get_color(), alpha=0.3, linewidth=1)
    axes.set(
        title="All requests so far",
        xlabel="minutes of the trace",
        ylabel="prompt tokens hit",
        ylim=(0, None),
    )
    axes.margins(x=0)
    _in_percent(axes.yaxis)
    axes.legend(fontsize=8)


def _draw_by_size(axes: Any, runs: Sequence[Replay]) -> None:
    """Lines over the device's slots, a line for whatever else differs; bars if there is one size only."""
    sizes = {run.cache.device_slots for run in runs}
    if len(sizes) == 1:
        axes.barh([label(run, runs) for run in runs], [run.hit_rate for run in runs])
        axes.invert_yaxis()
        axes.set(title=f"{slots_text(sizes.pop())} slots", xlabel="prompt tokens hit")
        _in_percent(axes.xaxis)
        return
    beyond = 4 * max(size for size in sizes if size is not None)  # where unlimited is drawn
    lines: dict[str, list[tuple[int, float]]] = {}
    for run in runs:
        others = replace(run, cache=replace(run.cache, device_slots=None))
        alike = [replace(each, cache=replace(each.cache, device_slots=None)) for each in runs]
        lines.setdefault(label(others, alike), []).append((run.cache.device_slots or beyond, run.hit_rate))
    for name, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
    axes.set(title="By size", xlabel="device slots", ylabel="prompt tokens hit", ylim=(0, None))
    axes.set_xscale("log", base=2)
    axes.set_xticks([size or beyond for size in sizes], [slots_text(size) for size in sizes])
    axes.minorticks_off()
    _in_percent(axes.yaxis)
    axes.legend(fontsize=8)


def _in_percent(axis: Any) -> None:
    axis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
    axis.set_major_formatter(PercentFormatter(1.0))


def _windowed(run: Replay, hits: Sequence[NDArray[np.int64]]) -> tuple[_FloatArray, list[_FloatArray]]:
    """The middle of each window in minutes, and in each the share of its prompt tokens that `hits` counts."""
    num_windows = min(_MAX_WINDOWS, len(run.timestamps_s) // _MIN_WINDOW + 1)
    edges = np.linspace(run.timestamps_s[0], np.nextafter(run.timestamps_s[-1], np.inf), num_windows + 1)
    tokens, _ = np.histogram(run.timestamps_s, edges, weights=run.prompt_tokens)
    shares = [np.histogram(run.timestamps_s, edges, weights=each)[0] / np.maximum(tokens, 1) for each in hits]
    return (edges[:-1] + edges[1:]) / 120, shares


def _cumulative(run: Replay) -> _FloatArray:
    rate: _FloatArray = (run.device_hits + run.host_hits).cumsum() / run.prompt_tokens.cumsum()
    return rate
