"""Our dashboards as tests read them: the JSON files that Grafana provisions."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from deploy.grafana.drawing import Renderer
from deploy.grafana.writing import FOLDER
from metrics.catalogue import by_series
from tests.deploy.rules import selectors
from tests.tools import INSTALLED, require_path, require_tool

_HOW_TO_GET = "make tools"

# What variables stand for when "All" is chosen.
_EVERYTHING = {f"${name}": ".*" for name in ("namespace", "worker", "tenant", "adapter")}
VARIABLE = re.compile(r"\$\{?(\w+)\}?")


@dataclass(frozen=True)
class Target:
    """One query of one panel."""

    dashboard: str
    panel: str
    panel_id: int
    ref_id: str
    asked: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}, {self.ref_id}"

    @property
    def expr(self) -> str:
        return str(self.asked["expr"])

    @property
    def filled_in(self) -> str:
        """The expression as Prometheus gets it."""
        return self.with_windows({"$__rate_interval": "1m", "$__range": "1h"})

    def with_windows(self, windows: Mapping[str, str]) -> str:
        """Return the expression with everything chosen, and with these windows."""
        expr = self.expr
        for variable, value in {**windows, **_EVERYTHING}.items():
            expr = expr.replace(variable, value)
        return expr

    def families(self) -> frozenset[str]:
        """The metrics that it asks for, by the names that documentation has them under."""
        known = by_series()
        names = {str(node.name) for node in selectors(self.filled_in)}
        return frozenset(known[name].name if name in known else name for name in names)


@cache
def dashboards() -> Mapping[str, Mapping[str, Any]]:
    """Return all dashboards by uid, as they are in the repository."""
    read = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    return {dashboard["uid"]: dashboard for dashboard in read}


def panels_of(dashboard: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the panels that show something: no headlines."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def targets() -> Iterator[Target]:
    for uid, dashboard in dashboards().items():
        for panel in panels_of(dashboard):
            for asked in panel["targets"]:
                yield Target(uid, panel["title"], panel["id"], asked["refId"], asked)


def renderer() -> Renderer:
    """Return the renderer that `make tools` has installed, or skip."""
    folder = INSTALLED.parent / "renderer"
    require_path(folder / "built", f"it is the renderer of dashboards; {_HOW_TO_GET}")
    return Renderer(folder, require_tool("node", "apt-get install nodejs"), require_tool("chromium", _HOW_TO_GET))
