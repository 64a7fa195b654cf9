"""Panels as all our dashboards have them: what they look like is decided here, once.

Every panel reads from the variable `datasource`, says "No traffic" (or what it is given) where nothing is to be shown,
and has a description.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode

from deploy.grafana.colours import CALM, GREY, Colours
from deploy.grafana.queries import Query

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
NO_TRAFFIC = "No traffic"
NONE = "None"

Step = tuple[float | None, str]

_FIGURE_SIZE = 30  # in pixels: one size for all, small enough for the narrowest


def steps(*values: Step) -> dashboard_builders.ThresholdsConfig:
    """Return thresholds: a colour from each value on; None is the beginning."""
    thresholds = [dashboard.Threshold(value=value, color=colour) for value, colour in values]
    return dashboard_builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(thresholds)


def texts(shown: Mapping[str, str]) -> dashboard.ValueMap:
    """Return a mapping from values to what is shown instead."""
    results = {
        value: dashboard.ValueMappingResult(text=text, index=place) for place, (value, text) in enumerate(shown.items())
    }
    return dashboard.ValueMap(options=results)


def over_time(query: Query, ref_id: str) -> prometheus.Dataquery:
    """Ask for the chosen range, which graphs want."""
    return _asked(query.expr, ref_id).legend_format(query.legend).range()


def now(query: Query, ref_id: str) -> prometheus.Dataquery:
    """Ask for this moment alone. Over a range, a number that has ended an hour ago would still be shown as the last."""
    return _asked(query.expr, ref_id).legend_format(query.legend).instant()


def _asked(expr: str, ref_id: str) -> prometheus.Dataquery:
    query = prometheus.Dataquery().expr(expr).ref_id(ref_id).datasource(DATASOURCE)
    return query.editor_mode(QueryEditorMode.CODE).format(PromQueryFormat.TIME_SERIES)


@dataclass(frozen=True, slots=True)
class Figure:
    """How a stat's number is read."""

    unit: str
    decimals: int | None = None
    thresholds: Sequence[Step] = ((None, CALM),)
    text: Mapping[str, str] | None = None  # value → what is shown instead: {"0": "None"}
    no_value: str = NO_TRAFFIC


def number(title: str, about: str, query: Query, figure: Figure) -> stat.Panel:
    """Return one number of this moment, coloured by what it means."""
    panel = (
        stat.Panel()
        .title(title)
        .description(about)
        .datasource(DATASOURCE)
        .with_target(now(query, "A"))
        .unit(figure.unit)
        .no_value(figure.no_value)
        .thresholds(steps(*figure.thresholds))
        .color_scheme(dashboard_builders.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields(""))
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(common.BigValueColorMode.VALUE)
        .justify_mode(common.BigValueJustifyMode.CENTER)
        .text_mode(common.BigValueTextMode.VALUE)
        .text(common_builders.VizTextDisplayOptions().value_size(_FIGURE_SIZE))
        .orientation(common.VizOrientation.AUTO)
        .min(0)
    )
    if figure.decimals is not None:
        panel = panel.decimals(figure.decimals)
    # Nothing is neither good nor bad, whatever the first threshold says.
    nothing = dashboard.SpecialValueMap(
        options=dashboard.DashboardSpecialValueMapOptions(
            match=dashboard.SpecialValueMatch.NULL_AND_NAN,
            result=dashboard.ValueMappingResult(text=figure.no_value, color=GREY),
        )
    )
    return panel.mappings([texts(figure.text or {}), nothing])


@dataclass(frozen=True, slots=True)
class Look:
    """How a graph's lines are drawn."""

    unit: str
    colours: Colours | None = None  # by name of the series; without, Grafana's palette
    stacked: bool = False
    top: float | None = None
    decimals: int | None = None
    no_value: str = NO_TRAFFIC
    many: bool = False  # as many lines as there are tenants: the legend is a list beside, sorted
    smallest_top: float | None = None  # the axis reaches at least that far
    dashed: Colours = field(default_factory=dict)  # drawn over what is stacked


def graph(title: str, about: str, queries: Sequence[Query], look: Look) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(title)
        .description(about)
        .datasource(DATASOURCE)
        .unit(look.unit)
        .no_value(look.no_value)
        .min(0)
        .color_scheme(dashboard_builders.FieldColor().mode(dashboard.FieldColorModeId.PALETTE_CLASSIC))
        .draw_style(common.GraphDrawStyle.LINE)
        .line_interpolation(common.LineInterpolation.LINEAR)
        .line_width(1)
        .fill_opacity(60 if look.stacked else 8)
        .gradient_mode(common.GraphGradientMode.NONE)
        .show_points(common.VisibilityMode.AUTO)
        .point_size(4)
        .span_nulls(False)
        .legend(_legend(look))
        .tooltip(
            common_builders.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.NONE if look.colours else common.SortOrder.DESCENDING)
        )
    )
    for ref_id, query in zip(_REF_IDS, queries, strict=False):
        panel = panel.with_target(over_time(query, ref_id))
    if look.stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if look.top is not None:
        panel = panel.max(look.top)
    if look.smallest_top is not None:
        panel = panel.axis_soft_max(look.smallest_top)
    if look.decimals is not None:
        panel = panel.decimals(look.decimals)
    for name, colour in (look.colours or {}).items():
        panel = panel.override_by_name(name, [_fixed(colour)])
    for name, colour in look.dashed.items():
        panel = panel.override_by_name(name, _dashed_line(colour))
    return panel


def _fixed(colour: str) -> dashboard.DynamicConfigValue:
    return dashboard.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})


def _dashed_line(colour: str) -> list[dashboard.DynamicConfigValue]:
    """A line of its own, on top of what is stacked."""
    custom = {
        "lineStyle": {"fill": "dash", "dash": [6, 4]},
        "lineWidth": 2,
        "fillOpacity": 0,
        "stacking": {"mode": "none", "group": "B"},
    }
    found = [dashboard.DynamicConfigValue(id_val=f"custom.{name}", value=value) for name, value in custom.items()]
    return [*found, _fixed(colour)]


def _legend(look: Look) -> common_builders.VizLegendOptions:
    legend = common_builders.VizLegendOptions().show_legend(True)
    if look.many:
        legend = legend.display_mode(common.LegendDisplayMode.TABLE).placement(common.LegendPlacement.RIGHT)
        return legend.calcs(["lastNotNull"]).sort_by("Last *").sort_desc(True)
    return legend.display_mode(common.LegendDisplayMode.LIST).placement(common.LegendPlacement.BOTTOM).calcs([])


_REF_IDS = "ABCDEFGHIJKLMNOP"
