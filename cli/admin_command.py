"""What commands of the operator share: how they reach the admin API."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from cli.admin_client import AdminClient, admin_client, admin_token_file
from cli.config import config_from, read_tree
from cli.credentials import is_sendable
from cli.rpc_errors import OPERATOR_HINT, rpc_errors_told
from cli.target import Target, target_options

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Admin:
    """Which gateway, where its admin token is, and how to print."""

    target: Target
    config_file: Path | None
    token_file: Path | None
    as_json: bool

    @contextmanager
    def connected(self) -> Iterator[AdminClient]:
        """Provide a client; failures of its RPCs end the command with a message."""
        token = admin_token(self.config_file, self.token_file)
        told = rpc_errors_told(self.target.address, OPERATOR_HINT)
        with told, admin_client(self.target, token) as client:
            yield client


def admin_options(command: F) -> F:
    """Add the options that say which gateway, with which token, and how to print; the command gets them as `admin`."""

    @functools.wraps(command)
    def with_admin(
        *arguments: Any, target: Target, file: Path | None, token_file: Path | None, as_json: bool, **options: Any
    ) -> Any:
        return command(*arguments, admin=Admin(target, file, token_file, as_json), **options)

    wrapped: Any = with_admin
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts."),
        token_options,
        target_options,
    ):
        wrapped = option(wrapped)
    result: F = wrapped
    return result


def token_options(command: F) -> F:
    """Add the options that say where the admin token is."""
    for option in (
        click.option(
            "--admin-token-file",
            "token_file",
            type=click.Path(path_type=Path, dir_okay=False),
            help="File with the admin token. Without it: RADIXGATE_ADMIN_TOKEN, --config, then what `serve` left.",
        ),
        click.option(
            "--config", "file", type=click.Path(path_type=Path, dir_okay=False), help="TOML with gateway.admin_token."
        ),
    ):
        command = option(command)
    return command


def request_id_option(command: F) -> F:
    """Add --request-id: what makes it safe to repeat a command that creates something."""
    return click.option(
        "--request-id",
        default="",
        help="A name for this call: repeated within a day it changes nothing and prints the first answer again.",
    )(command)


def yes_option(command: F) -> F:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask on a terminal.")(command)


def admin_token(file: Path | None, token_file: Path | None) -> str:
    """Return the token from the first place that has one. Raises click.UsageError where none has."""
    token = find_admin_token(file, token_file)
    if token is None:
        raise click.UsageError(
            "no admin token: set RADIXGATE_ADMIN_TOKEN, or gateway.admin_token in the file of --config, "
            "or name a file with --admin-token-file"
        )
    return token


def find_admin_token(file: Path | None, token_file: Path | None, *, leftover: bool = True) -> str | None:
    """Return the token from the first place that has one; from what `serve` left only with `leftover`."""
    if token_file is not None:
        return _read_token(token_file)
    if token := config_from(read_tree(file, [])).gateway.admin_token:
        return token
    return _read_token(admin_token_file()) if leftover and admin_token_file().exists() else None


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
