"""What dashboards ask for exists, and they are built as Grafana and people want them."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import promql_parser
import pytest

from deploy.grafana import writing
from deploy.grafana.colours import TIERS
from metrics.catalogue import by_series
from tests.deploy.dashboards import VARIABLE, Target, dashboards, panels_of, targets
from tests.deploy.rules import TARGET_LABELS, Series, alerts, faults, known_series, labels_of, selectors

# Prometheus itself tells which alerts fire; the rest of its labels are those of the alert's expression.
ALERT_LABELS = TARGET_LABELS | {"alertname", "alertstate", "severity", "worker", "tenant"}
# What stands where nothing is to be shown. A panel of what happens rarely or never must not speak of traffic.
NOTHING_THERE = {"No traffic", "None", "TLS is off", "No gateway"}
INFO_METRICS = {"radixgate_worker_info", "radixgate_gateway_info"}  # they give names to others
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
_LABEL_IN_LEGEND = re.compile(r"\{\{(\w+)\}\}")

ALL_TARGETS = list(targets())
ALL_PANELS = [(uid, panel) for uid, dashboard in dashboards().items() for panel in panels_of(dashboard)]


@cache
def known() -> Mapping[str, Series]:
    return {**known_series(), "ALERTS": Series(ALERT_LABELS, grows=False)}


def made_labels(expr: str) -> set[str]:
    """Labels that the expression itself gives to series."""
    replaced = set(re.findall(r'label_replace\(|, "(\w+)", "[^"]*", "\w+", "[^"]*"\)', expr)) - {""}
    return replaced | set(re.findall(r"group_left \((\w+)\)", expr))


def panel_name(panel: tuple[str, Mapping[str, Any]]) -> str:
    return f"{panel[0]}: {panel[1]['title']}"


def test_the_files_are_what_the_code_makes() -> None:
    files = {path.name: path.read_text() for path in writing.FOLDER.glob("*.json")}
    assert files == writing.dashboard_files(), "run `make dashboards`"


def test_there_are_four_dashboards_with_uids_that_links_can_rely_on() -> None:
    assert set(dashboards()) == {"radixgate-overview", "radixgate-cache", "radixgate-tenants", "radixgate-fleet"}


@pytest.mark.parametrize("target", ALL_TARGETS, ids=str)
def test_every_metric_label_and_bucket_of_a_query_exists(target: Target) -> None:
    made = made_labels(target.expr)
    excused = {f"by ({label}): nothing below has that label" for label in made}
    assert [fault for fault in faults(target.filled_in, known()) if fault not in excused] == []


def test_a_metric_that_is_renamed_is_missed_by_some_panel() -> None:
    shown = {str(node.name) for target in ALL_TARGETS for node in selectors(target.filled_in)}
    for name in sorted(shown & set(by_series())):
        without = {other: series for other, series in known().items() if other != name}
        asking = [target for target in ALL_TARGETS if name in target.expr]
        assert any(f"{name}: no such metric" in faults(target.filled_in, without) for target in asking), name


def test_every_metric_that_tells_of_the_cache_is_on_a_dashboard() -> None:
    shown = {str(node.name) for target in ALL_TARGETS for node in selectors(target.filled_in)}
    families = {family.name for family in by_series().values() if set(family.series) & shown}
    # Shown in another form, or of interest to who debugs and not to who watches.
    left_out = {
        "radixgate_cache_hit_rate",  # a ratio of the same counters, over a window of its own
        "radixgate_completion_tokens_total",
        "radixgate_sequences_finished_total",
        "radixgate_sequence_seconds",
        "radixgate_time_to_first_token_seconds",  # the gateways' counts what users feel
        "radixgate_gateway_request_seconds",
        "radixgate_gateway_inter_message_seconds",
        "radixgate_gateway_stream_seconds",
        "radixgate_kv_bytes_per_token",
        "radixgate_host_pool_bytes",
        "radixgate_host_pool_pinned",
        "radixgate_storage_pages",
        "radixgate_prefetch_reserved_bytes",
        "radixgate_gateway_queued_requests",
        "radixgate_gateway_public_prefix_tokens_total",
        "radixgate_gateway_signing_keys",
        "radixgate_gateway_signing_key_fetches_total",
        "radixgate_declined_load_backs_total",
        "radixgate_adapter_load_failures_total",
    }
    ours = {family.name for family in by_series().values() if family.name.startswith("radixgate_")}
    assert ours - families - left_out == set()


@pytest.mark.parametrize("target", ALL_TARGETS, ids=str)
def test_a_rate_is_taken_over_the_window_that_grafana_chooses(target: Target) -> None:
    windows = set(re.findall(r"\[([^\]]*)\]", target.expr))
    assert windows <= {"$__rate_interval", "$__range"}


@pytest.mark.parametrize("target", ALL_TARGETS, ids=str)
def test_a_quotient_says_nothing_where_nothing_is_below_the_line(target: Target) -> None:
    class Quotients:
        def look(self, node: Any) -> bool:
            if isinstance(node, promql_parser.BinaryExpr) and str(node.op) == "/":
                assert re.fullmatch(r"\(.*> 0\)", str(node.rhs).strip(), re.DOTALL), str(node.rhs)
            return True

    promql_parser.walk(promql_parser.parse(target.filled_in), Quotients().look)


@pytest.mark.parametrize("target", ALL_TARGETS, ids=str)
def test_no_average_is_taken_of_ratios_and_no_sum_of_quantiles(target: Target) -> None:
    assert "avg" not in target.expr
    assert not re.search(r"(sum|max|min)\s*(by \([^)]*\))?\s*\(histogram_quantile", target.expr)
    assert "radixgate_cache_hit_rate" not in target.expr


@pytest.mark.parametrize("target", ALL_TARGETS, ids=str)
def test_a_legend_speaks_of_labels_that_its_series_have(target: Target) -> None:
    labels = labels_of(promql_parser.parse(target.filled_in), known()) | made_labels(target.expr)
    legend = target.asked.get("legendFormat", "")
    assert set(_LABEL_IN_LEGEND.findall(legend)) <= labels
    assert legend or target.asked["format"] == "table"


@pytest.mark.parametrize("target", ALL_TARGETS, ids=str)
def test_a_query_reads_from_the_data_source_that_is_chosen(target: Target) -> None:
    assert target.asked["datasource"] == DATASOURCE


@pytest.mark.parametrize("panel", ALL_PANELS, ids=panel_name)
def test_a_panel_says_what_it_shows_and_what_to_do(panel: tuple[str, Mapping[str, Any]]) -> None:
    _, shown = panel
    named = set(re.findall(r"`(\w+)`", shown["description"]))
    mine = [target for target in ALL_TARGETS if (target.dashboard, target.panel_id) == (panel[0], shown["id"])]
    asked = frozenset[str]().union(*(target.families() for target in mine))
    assert asked - INFO_METRICS <= named
    assert shown["description"].endswith(".")
    assert len(shown["description"]) > 60


@pytest.mark.parametrize("panel", ALL_PANELS, ids=panel_name)
def test_a_panel_has_a_target_a_unit_and_a_word_for_nothing(panel: tuple[str, Mapping[str, Any]]) -> None:
    _, shown = panel
    assert shown["targets"]
    assert shown["datasource"] == DATASOURCE
    defaults = shown["fieldConfig"]["defaults"]
    assert defaults["noValue"] in NOTHING_THERE
    if shown["type"] == "table":
        units = [p["id"] for rule in shown["fieldConfig"]["overrides"] for p in rule["properties"]]
        assert shown["title"] == "Alerts" or "unit" in units
    else:
        assert defaults["unit"]


@pytest.mark.parametrize("uid", dashboards())
def test_panels_lie_side_by_side_and_inside_of_the_grid(uid: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboards()[uid]["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        for cell in (
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ):
            assert cell not in taken, f"{panel['title']} lies on {taken[cell]}"
            taken[cell] = panel["title"]
    lines = {y for _, y in taken}
    assert lines == set(range(max(lines) + 1)), "a line of the grid is empty"
    for y in lines:
        assert {x for x, line in taken if line == y} == set(range(COLUMNS)), f"line {y} has a gap"


@pytest.mark.parametrize("uid", dashboards())
def test_panels_have_ids_and_titles_of_their_own(uid: str) -> None:
    panels = dashboards()[uid]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["type"], panel["title"]) for panel in panels}) == len(panels)


@pytest.mark.parametrize("uid", dashboards())
def test_a_dashboard_uses_every_variable_that_it_offers_and_offers_those_it_uses(uid: str) -> None:
    dashboard = dashboards()[uid]
    offered = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = {"datasource"}
    for target in ALL_TARGETS:
        if target.dashboard == uid:
            used |= {name for name in VARIABLE.findall(target.expr) if not name.startswith("__")}
    assert used - {"1"} == offered


@pytest.mark.parametrize("uid", dashboards())
def test_all_is_chosen_at_first_and_includes_series_without_the_label(uid: str) -> None:
    for variable in dashboards()[uid]["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["allValue"] == ".*"
            assert variable["current"]["value"] == ["$__all"]
            metric, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
            assert label == variable["name"]
            assert label in known()[metric].labels


@pytest.mark.parametrize("uid", dashboards())
def test_a_dashboard_links_to_the_others_and_to_the_runbook(uid: str) -> None:
    dashboard = dashboards()[uid]
    assert "radixgate" in dashboard["tags"]
    others, runbook = dashboard["links"]
    assert others["type"] == "dashboards"
    assert others["tags"] == ["radixgate"]
    assert others["includeVars"]
    assert others["keepTime"]
    assert runbook["url"].endswith("/docs/runbook.md")


def test_a_tier_has_the_same_colour_everywhere() -> None:
    for _, panel in ALL_PANELS:
        for rule in panel["fieldConfig"]["overrides"]:
            colours = [
                each["value"]["fixedColor"]
                for each in rule["properties"]
                if each["id"] == "color" and "fixedColor" in each["value"]
            ]
            name = rule["matcher"]["options"]
            if name in TIERS and colours:
                assert colours == [TIERS[name]], panel["title"]
    assert len(set(TIERS.values())) == len(TIERS)


def test_a_time_to_the_first_token_is_beside_the_hit_rate() -> None:
    for uid in ("radixgate-overview", "radixgate-cache", "radixgate-tenants"):
        titles = {panel["title"] for panel in panels_of(dashboards()[uid])}
        assert any(title.startswith("Time to first token") for title in titles), uid


def test_the_alerts_that_are_looked_for_are_ours() -> None:
    pattern = next(
        m.value
        for t in ALL_TARGETS
        for node in selectors(t.filled_in)
        if node.name == "ALERTS"
        for m in node.matchers.matchers
        if m.name == "alertname"
    )
    assert all(re.fullmatch(pattern, rule.name) for rule in alerts())
