"""What `radixgate tenant` and `radixgate key` share: how they reach the admin API and how they show what it says."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from cli.admin_client import AdminClient, Key, admin_client, admin_token_file
from cli.config import config_from, read_tree
from cli.credentials import is_sendable
from cli.options import target_option
from cli.rpc_errors import OPERATOR_HINT, rpc_errors_told

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

F = TypeVar("F", bound=Callable[..., Any])


def admin_options(command: F) -> F:
    """Add the options that say which gateway, with which token, and how to print."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts."),
        click.option(
            "--admin-token-file",
            "token_file",
            type=click.Path(path_type=Path, dir_okay=False),
            help="File with the admin token. Without it: RADIXGATE_ADMIN_TOKEN, --config, then what `serve` left.",
        ),
        click.option(
            "--config", "file", type=click.Path(path_type=Path, dir_okay=False), help="TOML with gateway.admin_token."
        ),
        target_option,
    ):
        command = option(command)
    return command


@contextmanager
def connected(target: str, file: Path | None, token_file: Path | None) -> Iterator[AdminClient]:
    """Provide a client; failures of its RPCs end the command with a message."""
    token = _admin_token(file, token_file)
    with rpc_errors_told(target, OPERATOR_HINT), admin_client(target, token) as client:
        yield client


def show(values: Sequence["DataclassInstance"], as_json: bool) -> None:
    """Print a table on a terminal, tab-separated lines into a pipe, or JSON where asked for."""
    rows = [dataclasses.asdict(value) for value in values]
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False))
    elif not rows:
        click.echo("none")
    elif Console().is_terminal:
        table = Table(*(name.replace("_", " ") for name in rows[0]), box=None, header_style="bold")
        for row in rows:
            table.add_row(*map(_cell, row.values()))
        Console().print(table)
    else:
        for row in rows:
            click.echo("\t".join(map(_cell, row.values())))


def show_new_key(key: Key, secret: str, as_json: bool) -> None:
    """Print a key with what is its owner's to keep, which nobody can print again."""
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(key) | {"secret": secret}, ensure_ascii=False))
        return
    show_one(key, as_json)
    click.echo(f"{'API key:':<15} {secret}")
    click.echo("The API key is shown only this once: keep it.", err=True)


def show_one(value: "DataclassInstance", as_json: bool) -> None:
    """Print one value."""
    row = dataclasses.asdict(value)
    if as_json:
        click.echo(json.dumps(row, ensure_ascii=False))
        return
    for name, field in row.items():
        click.echo(f"{name.replace('_', ' ') + ':':<15} {_cell(field)}")


def _cell(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "all"  # who may use something, where nobody is named
    return "" if value is None else str(value)


def _admin_token(file: Path | None, token_file: Path | None) -> str:
    if token_file is not None:
        return _read_token(token_file)
    if token := config_from(read_tree(file, [])).gateway.admin_token:
        return token
    if admin_token_file().exists():
        return _read_token(admin_token_file())
    raise click.UsageError(
        "no admin token: set RADIXGATE_ADMIN_TOKEN, or gateway.admin_token in the file of --config, "
        "or name a file with --admin-token-file"
    )


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise click.UsageError(f"the admin token in {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise click.UsageError(f"what is in {path} is no admin token: it is no text") from error
    if not is_sendable(token):
        raise click.UsageError(f"what is in {path} is no admin token: one line of printable ASCII is")
    return token
