"""How commands print values: tables on a terminal, tab-separated lines into a pipe, JSON for scripts."""

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_NAME_WIDTH = 15


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
    elif Console().is_terminal:
        table = Table(*(name.replace("_", " ") for name in cells[0]), box=None, header_style="bold")
        for row in cells:
            table.add_row(*row.values())
        Console(markup=False).print(table)
    else:
        for row in cells:
            click.echo("\t".join(row.values()))


def show_one(value: "DataclassInstance", as_json: bool) -> None:
    """Print one value, a line for each field, down to what lies inside."""
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(value), ensure_ascii=False))
        return
    lines = list(_lines(dataclasses.asdict(value), ""))
    width = max([_NAME_WIDTH, *(len(name) + 1 for name, _ in lines)])
    for name, text in lines:
        click.echo(f"{name + ':':<{width}} {text}")


def confirmed(question: str, yes: bool) -> None:
    """Ask on a terminal, unless `yes` has answered. Scripts are not asked."""
    if not yes and sys.stdin.isatty():
        click.confirm(question, abort=True)


def _cells(row: "DataclassInstance") -> dict[str, str]:
    flat = ((each.name, getattr(row, each.name)) for each in dataclasses.fields(row))
    return {name: _cell(value) for name, value in flat if not _is_nested(value)}


def _is_nested(value: object) -> bool:
    return dataclasses.is_dataclass(value) or (
        isinstance(value, tuple) and any(dataclasses.is_dataclass(each) for each in value)
    )


def _lines(fields: Mapping[str, Any], above: str) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        words = f"{above}{name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from _lines(value, f"{words}: ")
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            for number, each in enumerate(value, start=1):
                yield from _lines(each, f"{words} {number}: ")
        else:
            yield words, _cell(value)


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "all"  # who may use something, where nobody is named
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
