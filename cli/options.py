"""The options that commands share."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from cli.config import Config, Tree, config_from, read_tree
from cli.show_config import as_toml

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_TARGET = "127.0.0.1:50051"


def config_options(command: F) -> F:
    """Add --config, --set, --check, and the hidden --config-stdin by which `serve` configures its children."""
    for option in (
        click.option("--config-stdin", is_flag=True, hidden=True),
        click.option("--check", is_flag=True, help="Validate, print the effective configuration and exit."),
        click.option(
            "--set",
            "assignments",
            multiple=True,
            metavar="A.B=VALUE",
            help="Set one value, as in --set worker.cache.num_slots=4096. May be repeated.",
        ),
        click.option(
            "--config",
            "file",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Read settings from a TOML file.",
        ),
    ):
        command = option(command)
    return command


def ready_file_option(text: str) -> Callable[[F], F]:
    """Add --ready-file: where to say that all is ready. A place that cannot be written to is told at once."""
    return click.option("--ready-file", type=click.Path(path_type=Path), callback=_writable, help=text)


def _writable(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    if value is not None:
        if value.is_dir():
            raise click.BadParameter(f"{value} is a folder")
        if not value.parent.is_dir():
            raise click.BadParameter(f"there is no folder {value.parent}")
        if not os.access(value.parent, os.W_OK):
            raise click.BadParameter(f"nothing can be written in {value.parent}")
    return value


def settings_tree(file: Path | None, assignments: Sequence[str], config_stdin: bool) -> Tree:
    """Return what the options set."""
    if config_stdin:
        tree: Tree = json.load(sys.stdin)
        return tree
    return read_tree(file, assignments)


def show_and_exit(config: Config) -> None:
    click.echo(as_toml(config), nl=False)
    click.get_current_context().exit(0)


def load(file: Path | None, assignments: Sequence[str], check: bool, config_stdin: bool) -> Config:
    """Return the configuration that the options describe; with --check, print it and end."""
    config = config_from(settings_tree(file, assignments, config_stdin))
    if check:
        show_and_exit(config)
    return config
