"""Draws all dashboards: `python -m deploy.grafana.pictures --prometheus URL --out FOLDER`."""

import argparse
import json
import shutil
import sys
from pathlib import Path

from deploy.grafana.drawing import CannotDraw, Drawn, Picture, Renderer
from deploy.grafana.writing import dashboard_files

INSTALLED = Path(__file__).resolve().parents[2] / ".cache" / "tools" / "renderer"  # by `make tools`


def main() -> int:
    asked = _arguments()
    node, chromium = shutil.which("node"), shutil.which("chromium")
    if node is None or chromium is None or not (INSTALLED / "built").exists():
        print("The renderer needs node, chromium and what `make tools` installs.", file=sys.stderr)
        return 1
    pictures = [
        Picture(
            name.removesuffix(".json"),
            json.loads(text),
            minutes=asked.minutes,
            mode=asked.theme,
            width=asked.width,
            scrape_interval_s=asked.scrape_interval,
        )
        for name, text in dashboard_files().items()
        if not asked.only or name.removesuffix(".json") in asked.only
    ]
    asked.out.mkdir(parents=True, exist_ok=True)
    try:
        report = Renderer(INSTALLED, node, chromium).draw(pictures, asked.prometheus, asked.out)
    except CannotDraw as error:
        print(error, file=sys.stderr)
        return 1
    for name, panels in report.items():
        print(f"{asked.out / name}.png")
        for panel in panels:
            print(f"  {_line(panel)}")
    return 1 if any(panel.shows == "error" for panels in report.values() for panel in panels) else 0


def _line(panel: Drawn) -> str:
    series = sum(query.series for query in panel.queries)
    told = f"{panel.title}: {panel.shows}, {series} series"
    return "\n    ".join((told, *panel.errors))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Draw all dashboards from a live Prometheus.")
    parser.add_argument("--prometheus", required=True, metavar="URL")
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="for the PNG files")
    parser.add_argument("--only", action="append", metavar="UID", help="this dashboard; may be repeated")
    parser.add_argument("--minutes", type=float, default=60.0, help="how much of the past (default: 60)")
    parser.add_argument("--theme", choices=("dark", "light"), default="dark")
    parser.add_argument("--width", type=int, default=1600, help="in pixels (default: 1600)")
    parser.add_argument(
        "--scrape-interval",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="that of the Prometheus, as Grafana's data source would be told (default: 15)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
