"""Tables: one row for each combination of some labels, one column for each query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import prometheus, table
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode

from deploy.grafana.colours import CALM
from deploy.grafana.panels import DATASOURCE, NO_TRAFFIC, Step, steps, texts

_REF_IDS = "ABCDEFGHIJKLMNOP"
_NARROWEST = 60  # a column that has no width of its own, in pixels


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers: `expr` has the table's labels and no others."""

    title: str
    expr: str
    unit: str
    decimals: int | None = None
    gauge: bool = False  # a bar from 0 to 1 behind the number
    thresholds: Sequence[Step] = ()  # colours of the number
    text: Mapping[str, str] | None = None  # value → what is shown instead
    no_value: str | None = None  # in cells of rows that this query does not know
    shown: bool = True  # a hidden one brings labels, and rows
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """What tells rows apart: label → title of its column, and the column that says which row comes first."""

    labels: Mapping[str, str]
    sort_by: str
    no_value: str = NO_TRAFFIC
    widths: Mapping[str, int] = field(default_factory=dict)  # by title of a label's column
    descending: bool = True


def table_of(title: str, about: str, rows: Rows, columns: Sequence[Column]) -> table.Panel:
    panel = (
        table.Panel()
        .title(title)
        .description(about)
        .datasource(DATASOURCE)
        .no_value(rows.no_value)
        .show_header(True)
        .cell_height(common.TableCellHeight.SM)
        .sort_by([common_builders.TableSortByFieldState().display_name(rows.sort_by).desc(rows.descending)])
        .color_scheme(dashboard_builders.FieldColor().mode(dashboard.FieldColorModeId.FIXED).fixed_color(CALM))
    )
    for kind in ("number", "string"):
        panel = panel.override_by_field_type(kind, [_property("custom.minWidth", _NARROWEST)])
    for ref_id, column in zip(_REF_IDS, columns, strict=False):
        panel = panel.with_target(_row_query(column.expr, ref_id))
        if column.shown:
            panel = panel.override_by_name(column.title, _properties(column))
    for name, width in rows.widths.items():
        panel = panel.override_by_name(name, [_property("custom.width", width)])
    return panel.with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={})).with_transformation(
        dashboard.DataTransformerConfig(id_val="organize", options=_arranged(rows, columns))
    )


def _row_query(expr: str, ref_id: str) -> prometheus.Dataquery:
    query = prometheus.Dataquery().expr(expr).ref_id(ref_id).datasource(DATASOURCE).instant()
    return query.editor_mode(QueryEditorMode.CODE).format(PromQueryFormat.TABLE)


def _properties(column: Column) -> list[dashboard.DynamicConfigValue]:
    found = [_property("unit", column.unit)]
    if column.decimals is not None:
        found.append(_property("decimals", column.decimals))
    if column.width is not None:
        found.append(_property("custom.width", column.width))
    if column.gauge:
        cell = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
        found += [_property("min", 0), _property("max", 1), _property("custom.cellOptions", cell)]
    if column.thresholds:
        found += [
            _property("thresholds", steps(*column.thresholds).build()),
            _property("color", {"mode": "thresholds"}),
            _property("custom.cellOptions", {"type": "color-text"}),
        ]
    if column.no_value is not None:
        found.append(_property("noValue", column.no_value))
    if column.text is not None:
        found.append(_property("mappings", [texts(column.text)]))
    return found


def _property(name: str, value: object) -> dashboard.DynamicConfigValue:
    return dashboard.DynamicConfigValue(id_val=name, value=value)


def _arranged(rows: Rows, columns: Sequence[Column]) -> dict[str, object]:
    """Name the columns, in this order. A query that stands alone has no letter behind its name."""
    fields = [f"Value #{ref_id}" for ref_id, _ in zip(_REF_IDS, columns, strict=False)]
    if len(columns) == 1:
        fields = ["Value"]
    named = list(zip(fields, columns, strict=True))
    names = {**rows.labels, **{field: column.title for field, column in named}}
    hidden = [field for field, column in named if not column.shown]
    return {
        "excludeByName": dict.fromkeys(("Time", *hidden), True),
        "indexByName": {name: place for place, name in enumerate(names)},
        "renameByName": {name: title for name, title in names.items() if name not in hidden},
    }
