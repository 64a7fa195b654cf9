"""`radixgate audit`: what operators have done."""

import click

from cli.admin_command import Admin, admin_options
from cli.showing import show


@click.group("audit")
def command() -> None:
    """The audit log of the admin API."""


@command.command("list")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many entries at most.")
@admin_options
def list_all(limit: int, admin: Admin) -> None:
    """List calls that changed something or were refused, newest first."""
    with admin.connected() as client:
        show(client.audit_entries(limit), admin.as_json)
