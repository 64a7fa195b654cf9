"""`radixgate tenant`: the tenants of a deployment, and what they may do."""

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import click

from cli.admin_client.values import POLICY_FIELDS, Policy
from cli.admin_command import Admin, admin_options, request_id_option, yes_option
from cli.parameters import DURATION
from cli.showing import confirmed, show, show_one

F = TypeVar("F", bound=Callable[..., Any])

_POLICY_OPTIONS = (
    click.option("--weight", type=float, help="Its share against other tenants."),
    click.option("--priority", type=int, help="The highest priority of its requests, and the default."),
    click.option("--cache-floor-tokens", type=int, help="Slots of each worker's pools that others cannot take."),
    click.option("--max-deadline", type=DURATION, help="The longest that one of its requests may take, such as 90s."),
    click.option("--requests-per-minute", type=int, help="In any 60 seconds, over all gateways."),
    click.option("--tokens-per-minute", type=int, help="Admitted in any 60 seconds, over all gateways."),
    click.option("--max-concurrent-requests", type=int, help="At a time, over all gateways."),
    click.option("--max-queued-requests", type=int, help="Requests beyond those that may wait."),
    click.option("--model", "models", multiple=True, metavar="MODEL", help="May use it; repeatable, without: all."),
    click.option("--adapter", "adapters", multiple=True, metavar="NAME", help="May use it; repeatable, without: all."),
)


def _policy_options(command: F) -> F:
    """Add the options that set a policy; the command gets them as `policy`."""

    @functools.wraps(command)
    def with_policy(
        *arguments: Any,
        max_deadline: timedelta | None,
        models: Sequence[str],
        adapters: Sequence[str],
        **options: Any,
    ) -> Any:
        numbers = {name: options.pop(name) for name in POLICY_FIELDS if name in options}
        deadline_s = None if max_deadline is None else max_deadline.total_seconds()
        policy = Policy(max_deadline_s=deadline_s, models=tuple(models), adapters=tuple(adapters), **numbers)
        return command(*arguments, policy=policy, **options)

    wrapped: Any = with_policy
    for option in reversed(_POLICY_OPTIONS):
        wrapped = option(wrapped)
    result: F = wrapped
    return result


@click.group("tenant")
def command() -> None:
    """Create, change, suspend and delete tenants."""


@command.command("create")
@click.argument("tenant_id")
@click.option("--name", "display_name", default="", help="A name for people.")
@_policy_options
@request_id_option
@admin_options
def create(tenant_id: str, display_name: str, policy: Policy, request_id: str, admin: Admin) -> None:
    """Create a tenant. TENANT_ID: lower-case letters, digits, `-` and `_`; 1 to 64 characters.

    What is not set here is as the gateways' configuration has it.
    """
    with admin.connected() as client:
        show_one(client.tenants.create(tenant_id, display_name, policy, request_id), admin.as_json)


@command.command("get")
@click.argument("tenant_id")
@admin_options
def get(tenant_id: str, admin: Admin) -> None:
    """Show one tenant: what is set for it, and what holds."""
    with admin.connected() as client:
        show_one(client.tenants.get(tenant_id), admin.as_json)


@command.command("list")
@admin_options
def list_all(admin: Admin) -> None:
    """List all tenants."""
    with admin.connected() as client:
        show(list(client.tenants.list()), admin.as_json)


@command.command("update")
@click.argument("tenant_id")
@click.option("--name", "display_name", help="A name for people.")
@_policy_options
@click.option(
    "--unset",
    multiple=True,
    type=click.Choice([name.replace("_", "-") for name in POLICY_FIELDS]),
    metavar="FIELD",
    help=f"Back to what the configuration says; repeatable: {', '.join(n.replace('_', '-') for n in POLICY_FIELDS)}.",
)
@admin_options
def update(tenant_id: str, display_name: str | None, policy: Policy, unset: Sequence[str], admin: Admin) -> None:
    """Change what is given, and nothing else. Holds for the tenant's next request."""
    fields = [name.replace("-", "_") for name in unset]
    if both := sorted(set(fields) & set(policy.names_set())):
        raise click.UsageError(f"set and unset at once: {', '.join(both)}")
    if display_name is None and not fields and not policy.names_set():
        raise click.UsageError("nothing to change: see --help for what can be set")
    with admin.connected() as client:
        show_one(client.tenants.update(tenant_id, display_name, policy, fields), admin.as_json)


@command.command("suspend")
@click.argument("tenant_id")
@admin_options
def suspend(tenant_id: str, admin: Admin) -> None:
    """Refuse a tenant's requests from now on, and end those that run."""
    with admin.connected() as client:
        show_one(client.tenants.suspend(tenant_id), admin.as_json)


@command.command("resume")
@click.argument("tenant_id")
@admin_options
def resume(tenant_id: str, admin: Admin) -> None:
    """Let a suspended tenant go on."""
    with admin.connected() as client:
        show_one(client.tenants.resume(tenant_id), admin.as_json)


@command.command("delete")
@click.argument("tenant_id")
@yes_option
@admin_options
def delete(tenant_id: str, yes: bool, admin: Admin) -> None:
    """Remove a tenant with its keys, its usage and its KV. There is no way back."""
    confirmed(f"Delete tenant {tenant_id} with its keys, its usage and what is cached for it?", yes)
    with admin.connected() as client:
        show_one(client.tenants.delete(tenant_id), admin.as_json)
