"""Every panel against a live Prometheus that looks at a live stack: asked, and drawn with Grafana's own components."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.grafana.drawing import Drawn, Picture
from tests.deploy.dashboards import Target, dashboards, panels_of, renderer, targets
from tests.deploy.observed import Observed
from tests.processes import wait_until
from tests.tools import REPOSITORY

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

# Queries that only what happens rarely answers: (title of the panel, name of the series, or "" for all of the panel).
RARE = {
    ("Alerts", ""),
    ("Certificate", ""),
    ("Certificates taken up", ""),
    ("Credentials refused", ""),
    ("Pauses", ""),
    ("Streams lost", ""),
    ("Calls by outcome", "cancelled"),
    ("Calls by outcome", "client error"),
    ("Calls by outcome", "failed"),
    ("Evictions", "lost"),
    ("Links", "D"),
    ("Pages", "skipped"),
    ("Pages", "missing"),
    ("Pages", "corrupt"),
    ("Pages", "dropped"),
    ("Usage log", ""),  # there is a log where one is configured
    # One worker, which lives: test_fleet_live looks at what others bring about.
    ("Workers", "G"),
    ("Gateways", "D"),
    ("Expectations", "over"),
    ("Expectations", "under"),
    ("Events of caches", "dropped"),
    ("Events of caches", "snapshots"),
    ("Upkeep of the index", ""),
    ("Moves", ""),
    ("Continued here", ""),
    ("Moves that could not be", ""),
    ("Breakers", ""),
    ("Refused for want of room", ""),
    ("Coming and going", ""),
}
# Panels of what is there, or could go wrong, with or without traffic. All others say "No traffic", or "None", without.
STATE = {
    "radixgate-overview": {"Alerts firing", "Worker links down", "Running and waiting", "Workers"},
    "radixgate-cache": {"Device in use", "Faults", "Device slots", "Host slots", "Copies that failed", "Stored"},
    "radixgate-tenants": set[str](),
    "radixgate-fleet": {
        "Workers",
        "Gateways",
        "Links down",
        "Stalled",
        "Redis",
        "Versions",
        "Pauses",
        "Moves",
        "Breakers",
        "Not reached",
        "Pages known",
        "Links",
        "Running",
        "Waiting",
        "In flight",
        "Device slots in use",
        "Namespaces",
        "Pending changes",
        "Floors not granted",
        "Unsettled requests",
        "Usage log",
        "Resident adapters",
        "Memory of adapters",
        "CPU",
        "Memory",
    },
}
_LOADED_S = 240.0  # by then everything that the traffic brings about has happened
_IDLE_S = 12.0
_STEP_S = 10


@dataclass(frozen=True)
class Seen:
    """What all panels show, by dashboard, and the pictures."""

    panels: Mapping[str, Sequence[Drawn]]
    folder: Path

    def of(self, uid: str) -> Sequence[Drawn]:
        return self.panels[uid]


def draw(observed: Observed, folder: Path, *, since: float, until: float, scrape_interval_s: float) -> Seen:
    pictures = [
        Picture(uid, dashboard, minutes=(until - since) / 60, ends_at=until, scrape_interval_s=scrape_interval_s)
        for uid, dashboard in dashboards().items()
    ]
    return Seen(renderer().draw(pictures, observed.prometheus.url, folder), folder)


def unanswered(observed: Observed, since: float, until: float) -> list[str]:
    """Queries that nothing answers, of those that should be answered under load; asked as the renderer asks them."""
    window = {"$__rate_interval": f"{4 * _STEP_S}s", "$__range": f"{until - since:.0f}s"}
    start, end = (moment // _STEP_S * _STEP_S for moment in (since, until))

    def answered(target: Target) -> bool:
        expr = target.with_windows(window)
        if target.asked.get("instant"):
            return bool(observed.prometheus.query(expr, until))
        return bool(observed.prometheus.query_range(expr, start, end, _STEP_S))

    return [str(target) for target in targets() if not is_rare(target) and not answered(target)]


def is_rare(target: Target) -> bool:
    name = target.asked.get("legendFormat") or target.ref_id
    return (target.panel, "") in RARE or (target.panel, name) in RARE


@pytest.fixture(scope="module")
def loaded(observed: Observed, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """All dashboards while requests come in, once whatever they bring about has been seen."""
    since = until = time.time() - 60
    missing: list[str] = []

    def complete() -> bool:
        nonlocal until
        until = time.time()
        missing[:] = unanswered(observed, since, until)
        return not missing

    try:
        wait_until(complete, timeout_s=_LOADED_S, what="an answer to every query")
    except AssertionError:
        pytest.fail(f"without an answer: {missing}", pytrace=False)
    folder = tmp_path_factory.mktemp("loaded")
    return draw(observed, folder, since=since, until=until, scrape_interval_s=_STEP_S)


@pytest.fixture(scope="module")
def idle(observed: Observed, tmp_path_factory: pytest.TempPathFactory, loaded: Seen) -> Seen:
    """All dashboards over some seconds in which nothing was asked of the stack."""
    observed.settle()
    try:
        since = time.time()
        wait_until(lambda: time.time() > since + 2 * _IDLE_S, timeout_s=60, what="some quiet seconds")
        folder = tmp_path_factory.mktemp("idle")
        return draw(observed, folder, since=since + _IDLE_S, until=since + 2 * _IDLE_S, scrape_interval_s=1)
    finally:
        observed.traffic.resume()


@pytest.mark.parametrize("uid", dashboards())
def test_no_panel_says_no_data_under_load(loaded: Seen, uid: str) -> None:
    rare = {title for title, legend in RARE if not legend}
    for panel in loaded.of(uid):
        assert panel.shows == "data" or panel.title in rare, f"{panel.title} shows {panel.shows}"
        assert "No data" not in panel.text, panel.title


@pytest.mark.parametrize("uid", dashboards())
def test_every_query_of_every_panel_is_answered_under_load(loaded: Seen, uid: str) -> None:
    common = {
        (target.panel_id, target.ref_id) for target in targets() if target.dashboard == uid and not is_rare(target)
    }
    answers = {(panel.id, query.ref_id): query.series for panel in loaded.of(uid) for query in panel.queries}
    assert [target for target in sorted(common) if answers[target] == 0] == []
    assert [error for panel in loaded.of(uid) for error in panel.errors] == []


@pytest.mark.parametrize("uid", dashboards())
def test_a_panel_says_that_there_is_no_traffic_when_there_is_none(idle: Seen, uid: str) -> None:
    said = {panel["id"]: panel["fieldConfig"]["defaults"]["noValue"] for panel in panels_of(dashboards()[uid])}
    for panel in idle.of(uid):
        assert panel.errors == [], panel.title
        assert "No data" not in panel.text, panel.title
        assert "NaN" not in panel.text, panel.title
        if panel.title in STATE[uid]:
            continue
        assert panel.shows == said[panel.id], f"{panel.title} shows {panel.text}"
        assert said[panel.id] in panel.text, f"{panel.title} shows {panel.text}"


@pytest.mark.parametrize("uid", dashboards())
def test_what_is_there_is_shown_without_traffic(idle: Seen, uid: str) -> None:
    shown = {panel.title for panel in idle.of(uid) if panel.shows == "data"}
    assert STATE[uid] - {"Usage log", "Pauses"} <= shown


@pytest.mark.parametrize("uid", dashboards())
def test_every_panel_is_drawn_in_both_cases(loaded: Seen, idle: Seen, uid: str) -> None:
    wanted = [panel["id"] for panel in panels_of(dashboards()[uid])]
    for seen in (loaded, idle):
        assert [panel.id for panel in seen.of(uid)] == wanted
        assert [panel.title for panel in seen.of(uid) if not panel.drawn] == []
        picture = seen.folder / f"{uid}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size > 20_000


def test_the_report_tells_a_broken_panel_from_an_empty_one(observed: Observed, tmp_path: Path) -> None:
    stat, graph = _panels_to_break()
    broken = Picture("broken", {**dashboards()["radixgate-overview"], "panels": [stat, graph]})
    drawn = renderer().draw([broken], observed.prometheus.url, tmp_path)["broken"]
    assert [panel.shows for panel in drawn] == ["error", "No traffic"]
    assert "parse error" in drawn[0].errors[0]
    assert "No traffic" in drawn[1].text


def test_the_command_draws_what_it_is_asked_for_and_says_what_panels_show(observed: Observed, tmp_path: Path) -> None:
    renderer()  # or skip
    where = ["--prometheus", observed.prometheus.url, "--out", str(tmp_path), "--scrape-interval", "5"]
    asked = [
        sys.executable,
        "-m",
        "deploy.grafana.pictures",
        *where,
        "--only",
        "radixgate-overview",
        "--theme",
        "light",
    ]
    done = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["radixgate-overview.png"]
    assert "  Hit rate by tier: data, 3 series\n" in done.stdout


def _panels_to_break() -> list[dict[str, object]]:
    panels = panels_of(dashboards()["radixgate-overview"])
    stat, graph = (
        json.loads(json.dumps(next(panel for panel in panels if panel["title"] == title)))
        for title in ("Hit rate", "Hit rate by tier")
    )
    stat["targets"][0]["expr"] = "sum(("
    graph["targets"][0]["expr"] = "radixgate_that_nobody_has_heard_of"
    return [stat, graph]
