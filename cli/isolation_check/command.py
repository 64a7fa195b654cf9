"""The command line of `radixgate isolation-check`."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cli.admin_command import find_admin_token, token_options
from cli.credentials import is_sendable
from cli.isolation_check.checks.timing import MIN_PAIRS
from cli.isolation_check.plan import NAMES, Wanted, planned
from cli.isolation_check.probes import Refused, Unreachable
from cli.isolation_check.prompts import TooFewTokensError
from cli.isolation_check.report import report
from cli.isolation_check.running import run_checks
from cli.isolation_check.verdicts import exit_code
from cli.progress import reporter_for
from cli.ready_file import read_ready_file, writer_is_gone
from cli.rpc_errors import OPERATOR_HINT, rpc_errors_told
from cli.target import Target, target_options


class UntoldError(click.ClickException):
    """Nothing could be told. Not 1, which says that isolation is broken."""

    exit_code = 2


def _key_option(name: str, variable: str, text: str) -> Callable[[Any], Any]:
    return click.option(name, envvar=variable, callback=_sendable, metavar="KEY", help=f"{text}  [env: {variable}]")


def _sendable(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    key = value.strip() if value else None
    if key and not is_sendable(key):
        raise click.BadParameter("an API key is one line of printable ASCII characters")
    return key


@click.command("isolation-check")
@target_options
@token_options
@_key_option("--key", "RADIXGATE_API_KEY", "API key of a tenant.")
@_key_option("--other-key", "RADIXGATE_OTHER_API_KEY", "API key of another tenant.")
@click.option("--http", metavar="URL", help="Check over the HTTP API, too.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Take addresses and keys from the ready file of `radixgate serve --demo --ready-file PATH`.",
)
@click.option("--model", default="", help="Where several are served.")
@click.option("--adapter", default="", help="A LoRA adapter to check with; without, one that a tenant may use.")
@click.option(
    "--adapter-folder",
    "folders",
    multiple=True,
    metavar="PATH",
    help="Two folders of adapters, on the workers' machines, to check adapters, names and revisions with.",
)
@click.option("--prompt-tokens", type=click.IntRange(min=32), default=256, show_default=True, help="Length of prompts.")
@click.option(
    "--pairs",
    type=click.IntRange(min=MIN_PAIRS),
    default=40,
    show_default=True,
    help="Pairs of times to measure.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="How often to look.")
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Only this check; repeatable.")
@click.option("--skip", multiple=True, type=click.Choice(NAMES), help="Without this check; repeatable.")
@click.option("--strict", is_flag=True, help="Checks that are skipped for want of an option make the exit status 2.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")
def command(as_json: bool, strict: bool, **options: Any) -> None:
    """Try out on a running deployment that tenants are isolated.

    Every check is a pair: what must be found, so that the check can see at all, and what must not. Needs the keys of
    two tenants, or the admin token, with which it makes two for itself. What it makes it removes.

    Exit status: 0 everything checked holds; 1 isolation is broken; 2 it could not be told.
    """
    console = Console(stderr=True, highlight=False)
    wanted = _wanted(**options)
    try:
        with rpc_errors_told(wanted.target.address, OPERATOR_HINT), reporter_for(console) as reporter:
            warn = _warner(console)
            with planned(wanted, reporter, warn, random.SystemRandom()) as checks:
                findings = run_checks(checks, reporter)
    except (Refused, Unreachable, TooFewTokensError) as error:
        raise UntoldError(str(error)) from error
    except KeyboardInterrupt as error:
        raise UntoldError("interrupted; what was made has been removed") from error
    except click.UsageError:
        raise
    except click.ClickException as error:
        raise UntoldError(error.message) from error
    status = exit_code(findings, strict=strict)
    report(findings, status, as_json)
    click.get_current_context().exit(status)


def _wanted(
    target: Target,
    key: str | None,
    other_key: str | None,
    http: str | None,
    ready_file: Path | None,
    folders: tuple[str, ...],
    **options: Any,
) -> Wanted:
    if len(folders) not in {0, 2}:
        raise click.UsageError("--adapter-folder is given twice, or not at all")
    if (key is None) != (other_key is None):
        raise click.UsageError("--key and --other-key belong together")
    if key is not None and key == other_key:
        raise click.UsageError("--key and --other-key are the same key")
    token = None
    keys = None if key is None or other_key is None else (key, other_key)
    if ready_file is not None:
        target, http, keys, token = _from_ready_file(ready_file, http)
    only, skip = options.pop("only"), options.pop("skip")
    return Wanted(
        target=target,
        http=http,
        keys=keys,
        adapter_folders=(folders[0], folders[1]) if folders else None,
        admin_token=_token(token, options.pop("file"), options.pop("token_file"), needed=keys is None),
        checks=[name for name in NAMES if (not only or name in only) and name not in skip],
        **options,
    )


def _from_ready_file(path: Path, http: str | None) -> tuple[Target, str | None, tuple[str, str], str | None]:
    try:
        ready = read_ready_file(path) or {}
        if writer_is_gone(ready):
            raise click.UsageError(f"{path} was left by a process that was killed (pid {ready['pid']})")
        one, other, *_ = ready["tenants"].values()
        return Target(ready["grpc"]), http or ready.get("http"), (one, other), ready.get("admin_token")
    except (KeyError, ValueError, AttributeError) as error:
        raise click.UsageError(f"{path} is no ready file of `radixgate serve --demo` with two tenants") from error


def _token(given: str | None, file: Path | None, token_file: Path | None, *, needed: bool) -> str | None:
    """Return the admin token. What `serve` has left, of whatever deployment, is taken only where one is needed."""
    if given is not None and file is None and token_file is None:
        return given  # that of the environment may be another deployment's
    return find_admin_token(file, token_file, leftover=needed) or given


def _warner(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(text, style="yellow", markup=False)
