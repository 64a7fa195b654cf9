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

_NAME_WIDTH = 15  # of names in front of values


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
    for line in _lines(dataclasses.asdict(value)):
        click.echo(line)


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


def _lines(fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        words = name.replace("_", " ")
        if isinstance(value, Mapping):
            yield from _block(words, value)
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            for number, each in enumerate(value, start=1):
                yield from _block(f"{words} {number}", each)
        else:
            yield f"{words + ':':<{_NAME_WIDTH}} {_cell(value)}"


def _block(words: str, fields: Mapping[str, Any]) -> Iterator[str]:
    """What lies inside a field: below its name, and without what is not set."""
    there = {name: value for name, value in fields.items() if value not in (None, (), "")}
    if not there:
        yield f"{words + ':':<{_NAME_WIDTH}} nothing set"
        return
    yield f"{words}:"
    yield from (f"  {line}" for line in _lines(there))


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "all"  # who may use something, where nobody is named
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
