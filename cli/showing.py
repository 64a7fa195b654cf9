"""How commands print values: tables on a terminal, tab-separated lines into a pipe, JSON for scripts."""

import dataclasses
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_NAME_WIDTH = 15  # of names in front of values, with the colon; more where one is longer
_GAP = 2  # between the columns of a table
# Names of who may use or be used, where naming nobody means everybody.
_ALL_IF_EMPTY = {"models", "adapters", "tenants"}


def show(
    values: Sequence["DataclassInstance"], as_json: bool, rows: Sequence["DataclassInstance"] | None = None
) -> None:
    """Print many values. `rows` is what people get to see of them; what lies inside a row's fields is left out."""
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(value) for value in values], ensure_ascii=False))
        return
    cells = [_cells(row) for row in (values if rows is None else rows)]
    if not cells:
        click.echo("none")
    elif (console := Console(markup=False, highlight=False)).is_terminal:
        _print_table(console, cells)
    else:
        for row in cells:
            click.echo("\t".join(row.values()))


def _print_table(console: Console, cells: Sequence[Mapping[str, str]]) -> None:
    """Print a table without what no row says. Nothing is shortened: what is too wide is printed as lines instead."""
    said = [name for name in cells[0] if any(row[name] for row in cells)]
    widths = {name: max(cell_len(row[name]) for row in cells) for name in said}
    headers = {name: _header(name, width) for name, width in widths.items()}
    total = sum(max(width, *map(len, headers[name])) + _GAP for name, width in widths.items())
    if total > console.width:
        for number, row in enumerate(cells):
            if number:
                click.echo()
            for line in _lines({name: row[name] for name in said if row[name]}):
                click.echo(line)
        return
    table = Table(box=None, header_style="bold", padding=(0, _GAP, 0, 0), pad_edge=True)
    for name, header in headers.items():
        numbers = all(row[name].replace(".", "", 1).isdecimal() or not row[name] for row in cells)
        table.add_column("\n".join(header), no_wrap=True, vertical="bottom", justify="right" if numbers else "left")
    for row in cells:
        table.add_row(*(row[name] for name in said))
    console.print(table)


def _header(name: str, width: int) -> list[str]:
    """Return a column's header in lines that are no wider than its cells, as far as its words allow."""
    words = name.split("_")
    return textwrap.wrap(" ".join(words), max(width, *map(len, words), 1), break_long_words=False)


def show_one(value: "DataclassInstance", as_json: bool) -> None:
    """Print one value, a line for each field, down to what lies inside."""
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(value), ensure_ascii=False))
        return
    for line in _lines(dataclasses.asdict(value)):
        click.echo(line)


def confirmed(question: str, yes: bool) -> None:
    """Ask on a terminal, unless `yes` has answered. Scripts are not asked."""
    if not yes and sys.stdin.isatty():
        click.confirm(question, abort=True)


def _cells(row: "DataclassInstance") -> dict[str, str]:
    flat = ((each.name, getattr(row, each.name)) for each in dataclasses.fields(row))
    return {name: _cell(name, value) for name, value in flat if not _is_nested(value)}


def _is_nested(value: object) -> bool:
    return dataclasses.is_dataclass(value) or (
        isinstance(value, tuple) and any(dataclasses.is_dataclass(each) for each in value)
    )


def _lines(fields: Mapping[str, Any]) -> Iterator[str]:
    width = max([_NAME_WIDTH, *(len(name) + 1 for name, value in fields.items() if not _has_lines(value))])
    for name, value in fields.items():
        words = name.replace("_", " ")
        if isinstance(value, Mapping):
            yield from _block(words, value, width)
        elif _has_lines(value):
            for number, each in enumerate(value, start=1):
                yield from _block(f"{words} {number}", each, width)
        else:
            yield f"{words + ':':<{width}} {_cell(name, value)}".rstrip()


def _has_lines(value: object) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping)
    )


def _block(words: str, fields: Mapping[str, Any], width: int) -> Iterator[str]:
    """What lies inside a field: below its name, and without what is not set."""
    there = {name: value for name, value in fields.items() if value not in (None, (), "")}
    if not there:
        yield f"{words + ':':<{width}} nothing set"
        return
    yield f"{words}:"
    yield from (f"  {line}" for line in _lines(there))


def _cell(name: str, value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or ("all" if name in _ALL_IF_EMPTY else "none")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
