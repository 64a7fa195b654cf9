"""`radixgate cache`: what the workers hold, and how to be rid of it."""

from dataclasses import dataclass

import click

from cli.admin_client.values import WorkerCache
from cli.admin_command import Admin, admin_options, yes_option
from cli.showing import confirmed, show, show_one

_PUBLIC = "(public prefixes)"


@dataclass(frozen=True, slots=True)
class CacheRow:
    """A tenant's part of a worker's cache, or the whole of it."""

    worker: str
    model: str
    tenant: str
    device_tokens: str
    host_tokens: str
    namespaces: str


@click.group("cache")
def command() -> None:
    """Show what is cached, and invalidate it."""


@command.command("invalidate")
@click.argument("tenant_id")
@click.option("--adapter", default="", help="Only what was computed with this adapter.")
@click.option("--purge", is_flag=True, help="Also free it, in all tiers. Without, it ages out.")
@yes_option
@admin_options
def invalidate(tenant_id: str, adapter: str, purge: bool, yes: bool, admin: Admin) -> None:
    """Let a tenant's requests find nothing from now on that was cached before. Those that run are undisturbed."""
    if purge:
        confirmed(f"Purge what is cached for tenant {tenant_id} from all tiers?", yes)
    with admin.connected() as client:
        show_one(client.cache.invalidate(tenant_id, adapter, purge=purge), admin.as_json)


@command.command("stats")
@click.argument("tenant_id", required=False, default="")
@admin_options
def stats(tenant_id: str, admin: Admin) -> None:
    """Show what the workers hold, of all tenants or of one."""
    with admin.connected() as client:
        workers = client.cache.stats(tenant_id)
        show(workers, admin.as_json, [row for worker in workers for row in _rows(worker)])


def _rows(worker: WorkerCache) -> list[CacheRow]:
    if not worker.reachable:
        return [CacheRow(worker.worker, worker.model, "(not reachable)", "", "", "")]
    device = f"{worker.device_slots - worker.device_free_slots} of {worker.device_slots}"
    host = f"{worker.host_slots - worker.host_free_slots} of {worker.host_slots}" if worker.host_slots else ""
    whole = CacheRow(worker.worker, worker.model, "(slots in use)", device, host, "")
    return [
        whole,
        *(
            CacheRow(
                worker.worker,
                worker.model,
                each.tenant_id or _PUBLIC,
                str(each.device_tokens),
                str(each.host_tokens),
                str(each.namespaces),
            )
            for each in worker.tenants
        ),
    ]
