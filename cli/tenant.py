"""`radixgate tenant`: the tenants of a deployment."""

from pathlib import Path

import click

from cli.admin_command import admin_options, connected, show, show_one


@click.group("tenant")
def command() -> None:
    """Create, show and list tenants."""


@command.command("create")
@click.argument("tenant_id")
@click.option("--name", "display_name", default="", help="A name for people.")
@admin_options
def create(
    tenant_id: str, display_name: str, target: str, file: Path | None, token_file: Path | None, as_json: bool
) -> None:
    """Create a tenant. TENANT_ID: lower-case letters, digits, `-` and `_`; 1 to 64 characters."""
    with connected(target, file, token_file) as client:
        show_one(client.create_tenant(tenant_id, display_name), as_json)


@command.command("get")
@click.argument("tenant_id")
@admin_options
def get(tenant_id: str, target: str, file: Path | None, token_file: Path | None, as_json: bool) -> None:
    """Show one tenant."""
    with connected(target, file, token_file) as client:
        show_one(client.get_tenant(tenant_id), as_json)


@command.command("list")
@admin_options
def list_all(target: str, file: Path | None, token_file: Path | None, as_json: bool) -> None:
    """List all tenants."""
    with connected(target, file, token_file) as client:
        show(list(client.list_tenants()), as_json)
