"""Runs the renderer: dashboards, drawn with Grafana's own components from a live Prometheus, as pictures.

There is no Grafana in it: `render/` fills in variables, asks Prometheus, and hands the answers to the components. It
tells, for each panel, what is to be seen on it.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

_TIMEOUT_S = 300.0

Mode = Literal["dark", "light"]


class CannotDraw(Exception):
    """The renderer ended with an error."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one panel shows."""

    id: int
    title: str
    type: str
    shows: str  # "data", "error", or the panel's text for "no value"
    text: str  # all that can be read on it
    drawn: bool  # whether anything is there at all
    queries: Sequence["Answered"]
    errors: Sequence[str]


@dataclass(frozen=True, slots=True)
class Answered:
    """How Prometheus answered one query."""

    ref_id: str
    expr: str
    series: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Picture:
    """One dashboard, over one span of time."""

    name: str  # of the file, without ending
    dashboard: Mapping[str, Any]
    minutes: float = 60.0
    ends_at: float | None = None  # seconds since the epoch; now, if None
    mode: Mode = "dark"
    width: int = 1600
    scrape_interval_s: float = 15.0  # as the data source in Grafana is told
    variables: Mapping[str, str | list[str]] = field(default_factory=dict)

    def request(self) -> dict[str, Any]:
        ends_at = time.time() if self.ends_at is None else self.ends_at
        return {
            "name": self.name,
            "dashboard": self.dashboard,
            "from": ends_at - 60 * self.minutes,
            "to": ends_at,
            "mode": self.mode,
            "width": self.width,
            "scrapeInterval": self.scrape_interval_s,
            "variables": dict(self.variables),
        }


@dataclass(frozen=True, slots=True)
class Renderer:
    """Where its parts are, as `make tools` installs them."""

    folder: Path
    node: str
    chromium: str

    def draw(self, pictures: Iterable[Picture], prometheus: str, out: Path) -> dict[str, list[Drawn]]:
        """Write one PNG for each picture into `out`; return what its panels show, by the picture's name."""
        request = {
            "dist": str(self.folder / "dist"),
            "chromium": self.chromium,
            "prometheus": prometheus.rstrip("/"),
            "out": str(out),
            "pictures": [picture.request() for picture in pictures],
        }
        ended = subprocess.run(
            [self.node, str(self.folder / "render.mjs")],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, "NODE_ENV": "production"},
        )
        if ended.returncode != 0:
            raise CannotDraw(ended.stderr.strip())
        report = json.loads(ended.stdout)
        return {name: [_drawn(panel) for panel in panels] for name, panels in report.items()}


def _drawn(panel: Mapping[str, Any]) -> Drawn:
    queries = [Answered(each["refId"], each["expr"], each["series"], each["error"]) for each in panel["targets"]]
    told = {name: panel[name] for name in ("id", "title", "type", "shows", "text", "drawn", "errors")}
    return Drawn(queries=queries, **told)
