"""The part of `radixgate adapter` that speaks to one worker: load, unload, and what it has."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

import click

from cli.admin_client.values import time_of
from cli.parameters import DURATION
from cli.rpc_errors import rpc_errors_told
from cli.showing import show, show_one
from cli.target import Target, Tls, tls_options
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
            load_time=time_of(message.load_time),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Unloaded:
    name: str
    failed_sequences: int
    dropped_tokens: int


def _worker_options(command: F) -> F:
    """Add the options that say which worker, and how to print; the command gets the worker as one Target, `worker`."""

    @functools.wraps(command)
    def with_worker(*arguments: Any, worker: str, tls: Tls | None, **options: Any) -> Any:
        return command(*arguments, worker=Target(worker, tls), **options)

    wrapped: Any = with_worker
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts."),
        tls_options,
        click.option(
            "--worker",
            envvar="RADIXGATE_WORKER",
            default=DEFAULT_WORKER,
            show_default=True,
            metavar="HOST:PORT",
            help="The worker.  [env: RADIXGATE_WORKER]",
        ),
    ):
        wrapped = option(wrapped)
    result: F = wrapped
    return result


def tenant_option(text: str) -> Callable[[F], F]:
    return click.option("--tenant", "tenants", multiple=True, metavar="TENANT", help=f"{text} May be repeated.")


@click.command("load")
@click.argument("name")
@click.argument("path")
@tenant_option("Who may use it; without, all tenants.")
@_worker_options
def load(name: str, path: str, tenants: Sequence[str], worker: Target, as_json: bool) -> None:
    """Have one worker read an adapter from the PEFT folder PATH on its machine, and let requests name it NAME.

    Under a name that the same tenants have, the new weights take over; requests on the old ones finish on them.
    """
    request = worker_pb2.LoadAdapterRequest(name=name, path=absolute(path), tenants=tenants)
    with _connected(worker) as stub:
        answer = stub.LoadAdapter(request, timeout=_LOAD_TIMEOUT_S)
    show_one(Adapter.of(answer.adapter), as_json)


@click.command("unload")
@click.argument("name")
@click.option("--revision", default="", help="Only if it has this revision.")
@click.option(
    "--grace", type=DURATION, default="30s", show_default=True, help="How long until requests that still use it fail."
)
@tenant_option("As it was loaded with.")
@_worker_options
def unload(name: str, revision: str, grace: timedelta, tenants: Sequence[str], worker: Target, as_json: bool) -> None:
    """Take an adapter from one worker, with what is cached for it. Returns when those that use it have ended."""
    grace_s = grace.total_seconds()
    request = worker_pb2.UnloadAdapterRequest(
        name=name, revision=revision, grace_ms=max(1, round(grace_s * 1000)), tenants=tenants
    )
    with _connected(worker) as stub:
        answer = stub.UnloadAdapter(request, timeout=grace_s + _ANSWER_TIMEOUT_S)
    show_one(Unloaded(name, answer.failed_sequences, answer.dropped_tokens), as_json)


def show_adapters_of(worker: Target, as_json: bool) -> None:
    """Print what a worker has, and whether it lies where it computes."""
    with _connected(worker) as stub:
        answer = stub.ListAdapters(worker_pb2.ListAdaptersRequest(), timeout=_LIST_TIMEOUT_S)
    show([Adapter.of(message) for message in answer.adapters], as_json)


@contextmanager
def _connected(worker: Target) -> Iterator[worker_pb2_grpc.WorkerServiceStub]:
    """Provide a stub; failures of its RPCs end the command with a message."""
    with rpc_errors_told(worker.address, _HINT), worker.channel() as channel:
        yield worker_pb2_grpc.WorkerServiceStub(channel)


def absolute(path: str) -> str:
    """A folder here is most likely meant, and the worker runs elsewhere in the tree; else the worker knows better."""
    folder = Path(path).expanduser()
    return str(folder.resolve()) if folder.is_dir() else path
