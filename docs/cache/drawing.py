"""Boxes, arrows and words on a sheet, in the colours that all pictures of the cache share."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK = "#24292f"
SOFT = "#57606a"
DEVICE = "#b6d7f5"
HOST = "#c9e7c3"
STORAGE = "#fbe3ae"
COMPUTED = "#f6c9c9"
PUBLIC = "#e0d4f5"
PLAIN = "#eef1f4"

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "radixgate",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 9,
}


class Sheet:
    """A drawing `width` by `height`, in units of which 12 are an inch; y grows upwards."""

    def __init__(self, width: float, height: float) -> None:
        with mpl.rc_context(_STYLE):
            self._figure = plt.figure(figsize=(width / 12, height / 12), facecolor="white")
            self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set_xlim(0, width)
        self._axes.set_ylim(0, height)
        self._axes.axis("off")

    def box(self, at: tuple[float, float], size: tuple[float, float], text: str = "", **how: Any) -> None:
        """Draw a box around `at`, its centre. `how`: colour, dashed, bold, and `size` of letters as `letters`."""
        (x, y), (width, height) = at, size
        patch = FancyBboxPatch(
            (x - width / 2 + 0.4, y - height / 2 + 0.4), width - 0.8, height - 0.8, boxstyle="round,pad=0.4",
            facecolor=how.get("colour", PLAIN), edgecolor=INK, linewidth=1.0,
            linestyle="--" if how.get("dashed") else "-",
        )  # fmt: skip
        self._axes.add_patch(patch)
        self.text(at, text, **how)

    def text(self, at: tuple[float, float], text: str, **how: Any) -> None:
        self._axes.text(
            *at, text, ha=how.get("align", "center"), va="center", fontsize=how.get("letters", 9),
            color=how.get("ink", INK), fontweight="bold" if how.get("bold") else "normal", linespacing=1.35,
        )  # fmt: skip

    def arrow(self, start: tuple[float, float], end: tuple[float, float], text: str = "", **how: Any) -> None:
        """Draw an arrow, with words beside its middle, `beside` away from it. `bend` curves it."""
        bend = how.get("bend", 0.0)
        patch = FancyArrowPatch(
            start, end, arrowstyle=how.get("tip", "-|>"), mutation_scale=11, linewidth=1.1, color=how.get("ink", SOFT),
            linestyle="--" if how.get("dashed") else "-", connectionstyle=f"arc3,rad={bend}", shrinkA=0, shrinkB=0,
        )  # fmt: skip
        self._axes.add_patch(patch)
        if text:
            aside = how.get("beside", (0.0, 0.0))
            middle = ((start[0] + end[0]) / 2 + aside[0], (start[1] + end[1]) / 2 + aside[1])
            self.text(middle, text, **{"letters": 8, "ink": SOFT, **how})

    def save(self, path: Path) -> None:
        """Write the drawing; the same drawing gives the same bytes."""
        with mpl.rc_context(_STYLE):
            self._figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(self._figure)
