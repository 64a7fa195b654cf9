"""`radixgate key`: the API keys of tenants."""

from pathlib import Path

import click

from cli.admin_command import admin_options, connected, show, show_new_key, show_one


@click.group("key")
def command() -> None:
    """Create, list and revoke API keys."""


@command.command("create")
@click.argument("tenant_id")
@click.option("--name", "display_name", default="", help="A name for people.")
@admin_options
def create(
    tenant_id: str, display_name: str, target: str, file: Path | None, token_file: Path | None, as_json: bool
) -> None:
    """Create a key for a tenant and print it, for the only time."""
    with connected(target, file, token_file) as client:
        key, secret = client.create_key(tenant_id, display_name)
        show_new_key(key, secret, as_json)


@command.command("list")
@click.argument("tenant_id")
@admin_options
def list_all(tenant_id: str, target: str, file: Path | None, token_file: Path | None, as_json: bool) -> None:
    """List a tenant's keys."""
    with connected(target, file, token_file) as client:
        show(client.list_keys(tenant_id), as_json)


@command.command("revoke")
@click.argument("key_id")
@admin_options
def revoke(key_id: str, target: str, file: Path | None, token_file: Path | None, as_json: bool) -> None:
    """Revoke a key: requests with it are refused from now on."""
    with connected(target, file, token_file) as client:
        show_one(client.revoke_key(key_id), as_json)
