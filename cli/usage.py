"""`radixgate usage`: what a tenant has used."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import click

from cli.admin_client.values import UsageCounts
from cli.admin_command import Admin, admin_options
from cli.parameters import DAY
from cli.showing import show


@dataclass(frozen=True, slots=True)
class UsageLine:
    day: str
    model: str
    adapter: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_device_tokens: int
    cached_host_tokens: int
    cached_storage_tokens: int
    public_prefix_tokens: int
    cached_public_tokens: int


@click.command("usage")
@click.argument("tenant_id")
@click.option("--from", "first_day", type=DAY, metavar="YYYY-MM-DD", help="First day.  [default: today]")
@click.option("--to", "last_day", type=DAY, metavar="YYYY-MM-DD", help="Last day.  [default: today]")
@admin_options
def command(tenant_id: str, first_day: str | None, last_day: str | None, admin: Admin) -> None:
    """Show a tenant's exact usage by day (UTC), model and adapter, and the total."""
    with admin.connected() as client:
        usage = client.usage(tenant_id, first_day or "", last_day or "")
    if admin.as_json:
        click.echo(json.dumps(dataclasses.asdict(usage), ensure_ascii=False))
        return
    lines = [_line(row.day, row.model, row.adapter, row.counts) for row in usage.rows]
    show([], admin.as_json, [*lines, _line("total", "", "", usage.total)] if lines else [])


def _line(day: str, model: str, adapter: str, counts: UsageCounts) -> UsageLine:
    numbers: dict[str, Any] = dataclasses.asdict(counts)
    return UsageLine(day, model, adapter, **numbers)
