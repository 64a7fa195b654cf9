"""A dashboard's frame: variables, links, and the grid that panels are placed in from left to right."""

from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard

from deploy.grafana.panels import DATASOURCE
from deploy.grafana.queries import GATEWAYS, TENANTS, series

TAG = "radixgate"
RUNBOOK = "https://github.com/radixgate/radixgate/blob/main/docs/runbook.md"
COLUMNS = 24

_VARIABLES = {
    "namespace": ("Namespace", series("radixgate_running_sequences", "")),
    "worker": ("Worker", series("radixgate_running_sequences", GATEWAYS)),
    "tenant": ("Tenant", series("radixgate_gateway_prompt_tokens_total", GATEWAYS)),
    "adapter": ("Adapter", series("radixgate_gateway_prompt_tokens_total", TENANTS)),
}


class Page:
    """Puts panels side by side; a panel that does not fit into the line begins the next one."""

    def __init__(self, uid: str, title: str, about: str, variables: Sequence[str]) -> None:
        self._dashboard = (
            dashboard_builders.Dashboard(title)
            .uid(uid)
            .description(about)
            .tags([TAG])
            .editable()
            .time("now-1h", "now")
            .refresh("30s")
            .timezone("browser")
            .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
            .link(_other_dashboards())
            .link(_runbook())
            .with_variable(_datasource_variable())
        )
        for name in variables:
            self._dashboard.with_variable(_variable(name))
        self._panels: list[dashboard.Panel | dashboard.RowPanel] = []
        self._x = self._y = self._line_height = 0

    def row(self, title: str) -> None:
        """Begin a new line with a headline."""
        self._break_line()
        row = dashboard_builders.Row(title).id(self._next_id()).build()
        row.grid_pos = dashboard.GridPos(x=0, y=self._y, w=COLUMNS, h=1)
        self._panels.append(row)
        self._y += 1

    def add(self, *panels: Builder[dashboard.Panel], width: int, height: int) -> None:
        """Place panels of one size."""
        for builder in panels:
            if self._x + width > COLUMNS:
                self._break_line()
            panel = builder.build()
            panel.id_val = self._next_id()
            panel.grid_pos = dashboard.GridPos(x=self._x, y=self._y, w=width, h=height)
            self._panels.append(panel)
            self._x += width
            self._line_height = max(self._line_height, height)

    def build(self) -> dashboard.Dashboard:
        built = self._dashboard.build()
        built.panels = self._panels
        return built

    def _next_id(self) -> int:
        return len(self._panels) + 1

    def _break_line(self) -> None:
        self._x, self._y, self._line_height = 0, self._y + self._line_height, 0


def _datasource_variable() -> dashboard_builders.DatasourceVariable:
    return dashboard_builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _variable(name: str) -> dashboard_builders.QueryVariable:
    label, chosen = _VARIABLES[name]
    everything = dashboard.VariableOption(selected=True, text=["All"], value=["$__all"])
    return (
        dashboard_builders.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(f"label_values({chosen.replace('{}', '')}, {name})")
        .include_all(True)
        .all_value(".*")
        .multi(True)
        .current(everything)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )


def _other_dashboards() -> dashboard_builders.DashboardLink:
    link = dashboard_builders.DashboardLink("RadixGate").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG])
    return (
        link.as_dropdown(True).include_vars(True).keep_time(True).tooltip("The other dashboards, for the same choice")
    )


def _runbook() -> dashboard_builders.DashboardLink:
    link = dashboard_builders.DashboardLink("Runbook").type(dashboard.DashboardLinkType.LINK).url(RUNBOOK)
    return link.icon("doc").target_blank(True).tooltip("What to do about each alert")
