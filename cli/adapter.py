"""`radixgate adapter`: LoRA adapters, over all workers of a model or on one of them."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import click

from cli.admin_client.adapter_calls import AdapterName
from cli.admin_client.adapter_values import RegisteredAdapter, Unregistered, adapter_rows
from cli.admin_command import Admin, admin_options, request_id_option, yes_option
from cli.parameters import DURATION
from cli.showing import confirmed, show, show_one
from cli.target import Target
from cli.worker_adapters import absolute, load, show_adapters_of, tenant_option, unload

F = TypeVar("F", bound=Callable[..., Any])


@click.group("adapter")
def command() -> None:
    """LoRA adapters: register them with a deployment, or load them on one worker.

    A registered adapter is on every worker of its model, also on those that start later. `load` and `unload` change one
    worker alone (--worker).
    """


def _which(command: F) -> F:
    """Add the options that tell adapters of one name apart."""
    model = click.option("--model", default="", help="Where several are served.")
    return tenant_option("As it was registered with.")(model(command))


@command.command("register")
@click.argument("name")
@click.argument("path")
@click.option("--model", default="", help="The model that it belongs to, where several are served.")
@tenant_option("Who may use it; without, all tenants.")
@click.option(
    "--traffic", "percent", type=click.IntRange(0, 100), help="Share of new weights under an old name.  [default: 100]"
)
@request_id_option
@admin_options
def register(
    name: str,
    path: str,
    model: str,
    tenants: Sequence[str],
    percent: int | None,
    request_id: str,
    admin: Admin,
) -> None:
    """Have all workers of a model load an adapter from the PEFT folder PATH on their machines.

    Under a name that the same tenants have, the new weights take the share of --traffic.
    """
    with admin.connected() as client:
        which = AdapterName(name, model, tenants)
        _show(client.adapters.register(which, absolute(path), percent, request_id), admin)


@command.command("get")
@click.argument("name")
@_which
@admin_options
def get(name: str, model: str, tenants: Sequence[str], admin: Admin) -> None:
    """Show one adapter: its revisions, their shares of the traffic, and which workers have them."""
    with admin.connected() as client:
        _show(client.adapters.get(AdapterName(name, model, tenants)), admin)


@command.command("list")
@click.option(
    "--worker", envvar="RADIXGATE_WORKER", metavar="HOST:PORT", help="Ask this worker.  [env: RADIXGATE_WORKER]"
)
@admin_options
def list_all(worker: str | None, admin: Admin) -> None:
    """List what is registered, a line for each revision; with --worker, what that worker has."""
    if worker is not None:
        show_adapters_of(Target(worker, admin.target.tls), admin.as_json)
        return
    with admin.connected() as client:
        adapters = client.adapters.list()
        show(adapters, admin.as_json, [row for adapter in adapters for row in adapter_rows(adapter)])


@command.command("traffic")
@click.argument("name")
@click.argument("revision")
@click.argument("percent", type=click.IntRange(0, 100))
@_which
@admin_options
def traffic(name: str, revision: str, percent: int, model: str, tenants: Sequence[str], admin: Admin) -> None:
    """Give one of two revisions PERCENT of the traffic, and the other the rest. At 100 the other one goes.

    REVISION: at least its first 8 digits.
    """
    with admin.connected() as client:
        _show(client.adapters.split_traffic(AdapterName(name, model, tenants), revision, percent), admin)


@command.command("rollback")
@click.argument("name")
@_which
@admin_options
def roll_back(name: str, model: str, tenants: Sequence[str], admin: Admin) -> None:
    """Give all traffic to the revision that had it before the last one came."""
    with admin.connected() as client:
        _show(client.adapters.roll_back(AdapterName(name, model, tenants)), admin)


@command.command("unregister")
@click.argument("name")
@click.option(
    "--grace", type=DURATION, help="How long until requests that still use it fail, such as 2m.  [default: 30s]"
)
@_which
@yes_option
@admin_options
def unregister(name: str, grace: timedelta | None, model: str, tenants: Sequence[str], yes: bool, admin: Admin) -> None:
    """Take an adapter from all workers, with what is cached for it."""
    confirmed(f"Take adapter {name} from all workers?", yes)
    with admin.connected() as client:
        failed = client.adapters.unregister(AdapterName(name, model, tenants), grace)
        show_one(Unregistered(name, failed), admin.as_json)


def _show(adapter: RegisteredAdapter, admin: Admin) -> None:
    show_one(adapter, admin.as_json)


command.add_command(load)
command.add_command(unload)
