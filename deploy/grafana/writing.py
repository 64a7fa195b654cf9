"""From dashboards in Python to the JSON files that Grafana provisions."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.cache import cache
from deploy.grafana.fleet import fleet
from deploy.grafana.overview import overview
from deploy.grafana.tenants import tenants

FOLDER = Path(__file__).resolve().parents[1] / "helm" / "radixgate" / "files" / "dashboards"

DASHBOARDS: tuple[Callable[[], Dashboard], ...] = (overview, cache, tenants, fleet)


def dashboard_files() -> Mapping[str, str]:
    """Return what each file of the folder must hold, by name."""
    return {f"{built.uid}.json": _text(built) for built in (make() for make in DASHBOARDS)}


def write(folder: Path = FOLDER) -> list[Path]:
    """Write all files, remove what is none of them, and return what is new or has changed."""
    folder.mkdir(parents=True, exist_ok=True)
    files = dashboard_files()
    for stray in folder.glob("*.json"):
        if stray.name not in files:
            stray.unlink()
    changed = []
    for name, text in files.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed.append(path)
    return changed


def _text(built: Dashboard) -> str:
    return json.dumps(json.loads(JSONEncoder().encode(built)), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
