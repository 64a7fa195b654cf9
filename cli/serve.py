"""`radixgate serve`: everything on this machine, with one command."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from cli.admin_client import admin_client, admin_token_file, data_folder
from cli.child import ChildDiedError
from cli.config import Config, Tree, config_from, is_set, set_at, with_free_ports
from cli.embedded_redis import EmbeddedRedisError
from cli.folder_lock import FolderError, folder_locked
from cli.listeners import AddressTakenError, check_listeners
from cli.options import DEFAULT_TARGET, config_options, ready_file_option, settings_tree, show_and_exit
from cli.progress import reporter_for
from cli.ready_file import write_ready_file, written_by
from cli.rpc_errors import OPERATOR_HINT, rpc_errors_told
from cli.supervisor import Deployment, Listener, StoppedError, StopSignal, Supervisor
from cli.worker_trees import worker_trees

DEMO_TENANTS = ("demo-a", "demo-b")

_DRAIN = ("gateway", "server", "drain_s")
_SIMULATION = ("worker", "simulation", "enabled")
_DEMO_DRAIN_S = 3.0  # people try, stop, and try again


@click.command("serve")
@config_options
@click.option("--demo", is_flag=True, help="Keep nothing on disk, and make the tenants demo-a and demo-b with keys.")
@click.option(
    "--workers",
    "num_workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Run so many workers. Each has its own number and listens one port above the one before it; what is not set "
    "of cores and memory they share.",
)
@click.option(
    "--simulate", is_flag=True, help="Serve no model: model its times, and answer with tokens that mean nothing."
)
@ready_file_option(
    "Write addresses, keys and the admin token there, as JSON, once ready. Addresses that are not set take free ports."
)
def command(
    file: Path | None,
    assignments: tuple[str, ...],
    check: bool,
    config_stdin: bool,
    demo: bool,
    num_workers: int,
    simulate: bool,
    ready_file: Path | None,
) -> None:
    """Serve all in one: Redis (unless redis.url is set), workers and a gateway, until Ctrl-C or SIGTERM."""
    tree = settings_tree(file, assignments, config_stdin)
    if simulate:
        set_at(tree, _SIMULATION, value=True)
    if demo and not is_set(tree, _DRAIN):
        set_at(tree, _DRAIN, _DEMO_DRAIN_S)
    if ready_file is not None:
        with_free_ports(tree)
    config = config_from(tree)
    if check:
        show_and_exit(config)
    if demo and config.gateway.tls.cert_file is not None:
        raise click.UsageError("--demo makes its tenants without TLS: leave gateway.tls out, or leave out --demo")
    console = Console(stderr=True, highlight=False)
    _quieten(tree, console)
    stop = StopSignal()
    try:
        with stop.installed():
            _serve(_Wanted(tree, config, worker_trees(tree, num_workers), demo, ready_file), stop, console)
    except StoppedError:
        console.print("stopped before everything was ready")
    except (AddressTakenError, ChildDiedError, EmbeddedRedisError, FolderError) as error:
        raise click.ClickException(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What was asked for."""

    tree: Tree
    config: Config
    workers: Sequence[Tree]  # the settings of each
    demo: bool
    ready_file: Path | None


def _serve(wanted: _Wanted, stop: StopSignal, console: Console) -> None:
    config, demo = wanted.config, wanted.demo
    with ExitStack() as stack:
        run_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="radixgate-")))
        progress = reporter_for(console)
        listener = Listener(lambda line: _print_log(console, line), progress.report)
        redis_folder = None if demo or config.redis.url else _redis_folder(config)
        for folder in _folders(redis_folder, leaves_token=not demo and config.gateway.admin_token is None):
            stack.enter_context(folder_locked(folder))
        check_listeners(config, [config_from(each) for each in wanted.workers[1:]])
        if wanted.ready_file is not None:
            wanted.ready_file.unlink(missing_ok=True)  # of one that was killed: nobody is to take it for ours
        supervisor = stack.enter_context(
            Supervisor(wanted.tree, wanted.workers, run_folder, redis_folder, stop, listener)
        )
        with progress:
            deployment = supervisor.start()
        keys = make_demo_tenants(deployment) if demo else {}
        if not demo and config.gateway.admin_token is None:
            _leave_admin_token(deployment.admin_token)
        if wanted.ready_file is not None:
            stack.enter_context(_announced(wanted.ready_file, deployment, keys))
        _print_how_to(console, deployment, keys, tls=config.gateway.tls.cert_file is not None)
        supervisor.run()
        console.print(_stopping(config.gateway.server.drain_s))
    if supervisor.forced:
        raise click.ClickException(f"had to be killed: {', '.join(supervisor.forced)}")


def make_demo_tenants(deployment: Deployment) -> dict[str, str]:
    """Make the demo's tenants over the admin API, unless an earlier demo has, and return new keys for them."""
    told = rpc_errors_told(deployment.grpc, OPERATOR_HINT)
    with told, admin_client(deployment.grpc, deployment.admin_token) as client:
        for tenant in DEMO_TENANTS:
            client.ensure_tenant(tenant)
        return {tenant: client.create_key(tenant, "demo")[1] for tenant in DEMO_TENANTS}


def _redis_folder(config: Config) -> Path:
    return Path(config.redis.data_dir).expanduser() if config.redis.data_dir else data_folder() / "redis"


def _folders(redis_folder: Path | None, *, leaves_token: bool) -> list[Path]:
    """Return what no other `radixgate serve` may use at the same time."""
    return [*([data_folder()] if leaves_token else []), *([redis_folder] if redis_folder is not None else [])]


def _leave_admin_token(token: str) -> None:
    """Keep the token that was made for this run where `radixgate tenant` and `key` of this user find it."""
    path = admin_token_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(f"{token}\n")


@contextmanager
def _announced(ready_file: Path, deployment: Deployment, keys: dict[str, str]) -> Iterator[None]:
    """Keep the ready file while we serve."""
    addresses = {"grpc": deployment.grpc, "http": deployment.http, "worker": deployment.workers[0]}
    lists = {"workers": list(deployment.workers), "metrics": list(deployment.metrics)}
    secrets = {"tenants": keys, "admin_token": deployment.admin_token}
    write_ready_file(ready_file, {**written_by(), **addresses, **lists, **secrets})
    try:
        yield
    finally:
        ready_file.unlink(missing_ok=True)


def _quieten(tree: Tree, console: Console) -> None:
    """On a terminal, children log for people, and only what deserves attention, unless told otherwise."""
    if console.is_terminal:
        for path, value in ((("log", "format"), "pretty"), (("log", "level"), "warning")):
            if not is_set(tree, path):
                set_at(tree, path, value)


def _print_log(console: Console, line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)


def _print_how_to(console: Console, deployment: Deployment, keys: dict[str, str], *, tls: bool) -> None:
    if not console.is_terminal:
        http = f", HTTP on {deployment.http}" if deployment.http else ""
        metrics = ", ".join(deployment.metrics)
        console.print(f"ready: gRPC on {deployment.grpc}{http}, metrics on {metrics}", soft_wrap=True)
        return
    target = "" if deployment.grpc == DEFAULT_TARGET else f" --target {deployment.grpc}"
    target += " --tls-ca CA_FILE" if tls else ""
    program = _program()
    lines = [f"\n[bold green]RadixGate serves on {deployment.grpc}[/] (gRPC, {'TLS' if tls else 'no TLS'})"]
    if deployment.http:
        lines.append(f"  OpenAI    {'https' if tls else 'http'}://{deployment.http}/v1")
    lines += [f"  metrics   {url}" for url in deployment.metrics]
    for tenant, key in keys.items():
        lines.append(f"  {tenant:<9} {program} chat{target} --key {key}")
    if keys:
        lines.append(f"  operator  RADIXGATE_ADMIN_TOKEN={deployment.admin_token} {program} cache stats{target}")
    else:
        lines.append(f"  tenants   {program} tenant create{target} acme && {program} key create{target} acme")
    lines += [f"  adapters  {program} adapter list --worker {address}" for address in deployment.workers]
    console.print("\n".join([*lines, "Ctrl-C ends it.\n"]), soft_wrap=True)


def _stopping(drain_s: float) -> str:
    return f"stopping: waiting up to {drain_s:g} s for running streams; Ctrl-C again ends now"


def _program() -> str:
    """Return how this user calls us: by name where the shell finds it, else as it was done this time."""
    name = "radixgate"
    return name if shutil.which(name) or Path(sys.argv[0]).name != name else sys.argv[0]
