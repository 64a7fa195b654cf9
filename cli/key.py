"""`radixgate key`: the API keys of tenants."""

import dataclasses
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from cli.admin_client.values import Key
from cli.admin_command import Admin, admin_options, request_id_option
from cli.parameters import DURATION, MOMENT
from cli.showing import show, show_one

_EXPIRES = click.option(
    "--expires", type=MOMENT, metavar="TIME", help="When it ends to be valid: a time (RFC 3339), or 30d from now."
)


@click.group("key")
def command() -> None:
    """Create, rotate, list and revoke API keys."""


@command.command("create")
@click.argument("tenant_id")
@click.option("--name", "display_name", default="", help="A name for people.")
@_EXPIRES
@click.option("--model", "models", multiple=True, metavar="MODEL", help="May use it; repeatable, without: all.")
@click.option("--adapter", "adapters", multiple=True, metavar="NAME", help="May use it; repeatable, without: all.")
@request_id_option
@admin_options
def create(
    tenant_id: str,
    display_name: str,
    expires: datetime | None,
    models: Sequence[str],
    adapters: Sequence[str],
    request_id: str,
    admin: Admin,
) -> None:
    """Create a key for a tenant and print it, for the only time."""
    with admin.connected() as client:
        key, secret = client.keys.create(tenant_id, display_name, expires, models, adapters, request_id)
        _show_new_key(key, secret, admin.as_json)


@command.command("list")
@click.argument("tenant_id")
@admin_options
def list_all(tenant_id: str, admin: Admin) -> None:
    """List a tenant's keys."""
    with admin.connected() as client:
        show(list(client.keys.list(tenant_id)), admin.as_json)


@command.command("rotate")
@click.argument("key_id")
@click.option("--overlap", type=DURATION, help="How long the old key goes on, such as 12h; at most 90d.  [default: 1d]")
@_EXPIRES
@request_id_option
@admin_options
def rotate(key_id: str, overlap: timedelta | None, expires: datetime | None, request_id: str, admin: Admin) -> None:
    """Replace a key: print a new one that may do the same, and let the old one expire after the overlap."""
    with admin.connected() as client:
        key, secret, replaced = client.keys.rotate(key_id, overlap, expires, request_id)
        _show_new_key(key, secret, admin.as_json, replaced=dataclasses.asdict(replaced))
        if not admin.as_json:
            click.echo(f"Key {replaced.key_id} is valid until {replaced.expire_time}.", err=True)


@command.command("revoke")
@click.argument("key_id")
@admin_options
def revoke(key_id: str, admin: Admin) -> None:
    """Revoke a key: requests with it are refused from now on."""
    with admin.connected() as client:
        show_one(client.keys.revoke(key_id), admin.as_json)


def _show_new_key(key: Key, secret: str, as_json: bool, **more: Any) -> None:
    """Print a key with what is its owner's to keep, which nobody can print again."""
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(key) | {"secret": secret} | more, ensure_ascii=False))
        return
    show_one(key, as_json)
    click.echo(f"{'API key:':<15} {secret}")
    click.echo("The API key is shown only this once: keep it.", err=True)
