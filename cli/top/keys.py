"""What keys do to what is shown. Values in, values out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from cli.top.columns import SORTS

ViewName = Literal["all", "workers", "gateways", "tenants", "adapters"]
VIEWS: Final[tuple[ViewName, ...]] = ("all", "workers", "gateways", "tenants", "adapters")
INTERVALS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0)
_PAGE = 10

HELP: Final = (
    ("q", "quit"),
    ("1-5, Tab", "all, workers, gateways, tenants, adapters"),
    ("s", "sort by the next column"),
    ("r", "turn the order around"),
    ("↑ ↓ PgUp PgDn", "scroll"),
    ("Space", "hold the picture; again goes on"),
    ("+ -", "look more or less often"),
    ("?", "this help; any key closes it"),
)


@dataclass(frozen=True, slots=True)
class Controls:
    """What somebody has chosen."""

    view: ViewName = "all"
    sort: int = 0  # which column of the view; of all, that of tenants
    reverse: bool = False
    offset: int = 0  # rows above the first that is shown
    held: bool = False
    help: bool = False
    interval_s: float = 2.0
    quit: bool = False

    @property
    def sorted_table(self) -> str:
        """Return the table that sorting is about."""
        return "tenants" if self.view == "all" else self.view

    @property
    def sort_header(self) -> str:
        sorts = SORTS[self.sorted_table]
        return sorts[self.sort % len(sorts)][0]


def pressed(controls: Controls, key: str) -> Controls:
    """Return what a key makes of it; keys that mean nothing change nothing."""
    if key in _QUIT:
        return replace(controls, quit=True)
    if controls.help:
        return replace(controls, help=False)
    if key.isdigit() and 1 <= int(key) <= len(VIEWS):
        return _switched(controls, VIEWS[int(key) - 1])
    return _KEYS[key](controls) if key in _KEYS else controls


def _turned(controls: Controls, by: int) -> Controls:
    return _switched(controls, VIEWS[(VIEWS.index(controls.view) + by) % len(VIEWS)])


def _switched(controls: Controls, view: ViewName) -> Controls:
    return controls if view == controls.view else replace(controls, view=view, sort=0, reverse=False, offset=0)


def _scrolled(controls: Controls, rows: int) -> Controls:
    return replace(controls, offset=max(0, controls.offset + rows))


def _next(interval_s: float, *, faster: bool) -> float:
    if faster:
        return max((each for each in INTERVALS_S if each < interval_s), default=INTERVALS_S[0])
    return min((each for each in INTERVALS_S if each > interval_s), default=INTERVALS_S[-1])


_QUIT: Final = frozenset({"q", "Q", "\x03", "\x04"})
_KEYS: Final[Mapping[str, Callable[[Controls], Controls]]] = {
    **dict.fromkeys(("\t", "right"), lambda controls: _turned(controls, 1)),
    **dict.fromkeys(("backtab", "left"), lambda controls: _turned(controls, -1)),
    **dict.fromkeys(("up", "k"), lambda controls: _scrolled(controls, -1)),
    **dict.fromkeys(("down", "j"), lambda controls: _scrolled(controls, 1)),
    "page up": lambda controls: _scrolled(controls, -_PAGE),
    "page down": lambda controls: _scrolled(controls, _PAGE),
    "s": lambda controls: replace(controls, sort=(controls.sort + 1) % len(SORTS[controls.sorted_table]), offset=0),
    "r": lambda controls: replace(controls, reverse=not controls.reverse, offset=0),
    " ": lambda controls: replace(controls, held=not controls.held),
    **dict.fromkeys(("?", "h"), lambda controls: replace(controls, help=True)),
    **dict.fromkeys(("+", "="), lambda controls: replace(controls, interval_s=_next(controls.interval_s, faster=True))),
    "-": lambda controls: replace(controls, interval_s=_next(controls.interval_s, faster=False)),
}
