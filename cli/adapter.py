"""`radixgate adapter`: the LoRA adapters of a worker."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any, Self, TypeVar

import click
import grpc

from cli.admin_command import show, show_one
from cli.rpc_errors import rpc_errors_told
from radixgate.v1 import worker_pb2, worker_pb2_grpc

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_WORKER = "127.0.0.1:50061"
_HINT = "workers ask for no credentials"
_LIST_TIMEOUT_S = 10.0
_LOAD_TIMEOUT_S = 900.0  # it may wait until the same adapter, on its way out, is gone
_ANSWER_TIMEOUT_S = 30.0  # beyond the grace that was given


@dataclasses.dataclass(frozen=True, slots=True)
class Adapter:
    name: str
    revision: str
    tenants: tuple[str, ...]  # that may use it; none named: all
    rank: int
    targets: tuple[str, ...]
    num_bytes: int
    resident: bool
    users: int
    load_time: str  # RFC 3339

    @classmethod
    def of(cls, message: worker_pb2.Adapter) -> Self:
        return cls(
            name=message.name,
            revision=message.revision,
            tenants=tuple(message.tenants),
            rank=message.rank,
            targets=tuple(message.targets),
            num_bytes=message.num_bytes,
            resident=message.resident,
            users=message.users,
            load_time=message.load_time.ToDatetime(tzinfo=UTC).isoformat(timespec="seconds"),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Unloaded:
    name: str
    failed_sequences: int
    dropped_tokens: int


def _worker_options(command: F) -> F:
    """Add the options that say which worker, and how to print."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts."),
        click.option(
            "--worker",
            envvar="RADIXGATE_WORKER",
            default=DEFAULT_WORKER,
            show_default=True,
            metavar="HOST:PORT",
            help="The worker.  [env: RADIXGATE_WORKER]",
        ),
    ):
        command = option(command)
    return command


def _tenant_option(text: str) -> Callable[[F], F]:
    return click.option("--tenant", "tenants", multiple=True, metavar="TENANT", help=f"{text} May be repeated.")


@click.group("adapter")
def command() -> None:
    """Load, unload and list the LoRA adapters of a worker. Each worker has its own."""


@command.command("load")
@click.argument("name")
@click.argument("path")
@_tenant_option("Who may use it; without, all tenants.")
@_worker_options
def load(name: str, path: str, tenants: Sequence[str], worker: str, as_json: bool) -> None:
    """Read an adapter from the PEFT folder PATH on the worker's machine, and let requests name it NAME.

    Under a name that the same tenants have, the new weights take over; requests on the old ones finish on them.
    """
    request = worker_pb2.LoadAdapterRequest(name=name, path=_absolute(path), tenants=tenants)
    with _connected(worker) as stub:
        answer = stub.LoadAdapter(request, timeout=_LOAD_TIMEOUT_S)
    show_one(Adapter.of(answer.adapter), as_json)


@command.command("unload")
@click.argument("name")
@click.option("--revision", default="", help="Only if it has this revision.")
@click.option(
    "--grace", "grace_s", type=click.FloatRange(min=0.001), default=30.0, show_default=True,
    help="Seconds until requests that still use it fail.",
)  # fmt: skip
@_tenant_option("As it was loaded with.")
@_worker_options
def unload(name: str, revision: str, grace_s: float, tenants: Sequence[str], worker: str, as_json: bool) -> None:
    """Take an adapter away, with what is cached for it. Returns when those that use it have ended."""
    request = worker_pb2.UnloadAdapterRequest(
        name=name, revision=revision, grace_ms=max(1, round(grace_s * 1000)), tenants=tenants
    )
    with _connected(worker) as stub:
        answer = stub.UnloadAdapter(request, timeout=grace_s + _ANSWER_TIMEOUT_S)
    show_one(Unloaded(name, answer.failed_sequences, answer.dropped_tokens), as_json)


@command.command("list")
@_worker_options
def list_all(worker: str, as_json: bool) -> None:
    """List all adapters, and whether they lie where they compute."""
    with _connected(worker) as stub:
        answer = stub.ListAdapters(worker_pb2.ListAdaptersRequest(), timeout=_LIST_TIMEOUT_S)
    show([Adapter.of(message) for message in answer.adapters], as_json)


@contextmanager
def _connected(worker: str) -> Iterator[worker_pb2_grpc.WorkerServiceStub]:
    """Provide a stub; failures of its RPCs end the command with a message."""
    with rpc_errors_told(worker, _HINT), grpc.insecure_channel(worker) as channel:
        yield worker_pb2_grpc.WorkerServiceStub(channel)


def _absolute(path: str) -> str:
    """A folder here is most likely meant, and the worker runs elsewhere in the tree; else the worker knows better."""
    folder = Path(path).expanduser()
    return str(folder.resolve()) if folder.is_dir() else path
