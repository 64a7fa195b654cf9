"""Shows where the time of a step goes, on the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

STEP_COLUMNS = {
    "measured_ms": "whole",
    "linear_ms": "linear layers",
    "attention_ms": "attention",
    "sampling_ms": "sampling",
    "rest_ms": "rest",
    "floor_ms": "floor",
    "measured_to_floor": "whole / floor",
}


def print_tables(report: Mapping[str, Any], console: Console) -> None:
    reads = ", ".join(f"{value / 1e9:.1f} GB/s" for value in report["bandwidth_bytes_per_s"].values())
    console.print(f"reads {reads} with {', '.join(report['bandwidth_bytes_per_s'])} threads", highlight=False)
    for dtype, found in report["numbers"].items():
        title = f"{dtype}: ms a step; products at {found['flop_per_s'] / 1e9:,.0f} GFLOP/s at best"
        table = Table("step", *STEP_COLUMNS.values(), title=title, title_justify="left")
        for name, figures in found["steps"].items():
            table.add_row(name, *(f"{figures[key]:.2f}" for key in STEP_COLUMNS))
        console.print(table)
        for batch, figures in found["engine"].items():
            console.print(
                f"{dtype}, engine with {batch}: step {figures['wall_ms']:.2f} ms, of which beside its pass "
                f"{figures['overhead_ms']:.2f} ms ({figures['overhead_share']:.1%}, with sampling "
                f"{figures['overhead_share_with_sampling']:.1%})",
                highlight=False,
            )
    for batch, figures in report.get("live", {}).items():
        console.print(
            f"stack with {batch}: request {figures['request_ms']:.1f} ms, of which transport "
            f"{figures['transport_ms']:.1f} ms ({figures['transport_share']:.1%}); step {figures['step_ms']:.2f} ms",
            highlight=False,
        )
