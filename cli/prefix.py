"""`radixgate prefix`: what prompts of all tenants begin with, computed once for all."""

import json
from typing import Any, TextIO

import click
from google.protobuf import json_format

from cli.admin_client.values import Purged
from cli.admin_command import Admin, admin_options, request_id_option, yes_option
from cli.showing import confirmed, show, show_one
from radixgate.v1 import admin_pb2, inference_pb2


@click.group("prefix")
def command() -> None:
    """Register, list and delete public prefixes: the only KV that tenants share."""


@command.command("create")
@click.argument("prefix_id")
@click.option("--text", help="Text that prompts begin with.")
@click.option("--file", "text_file", type=click.File(encoding="utf-8"), help="A file of such text; - reads it here.")
@click.option("--system", help="A system message that chats begin with.")
@click.option(
    "--chat-file",
    type=click.File(encoding="utf-8"),
    help='Messages that chats begin with: [{"role": …, "content": …}, …] or {"messages": […]}.',
)
@click.option("--name", "display_name", default="", help="A name for people.")
@click.option("--model", default="", help="Where several are served.")
@click.option("--adapter", default="", help="For requests with this adapter, which all tenants may use.")
@request_id_option
@admin_options
def create(admin: Admin, **options: Any) -> None:
    """Let all tenants share the KV of a prefix. What follows it stays each tenant's own.

    PREFIX_ID: lower-case letters, digits, `-` and `_`; 1 to 64 characters.
    """
    given = {name: options.pop(name) for name in ("text", "text_file", "system", "chat_file")}
    request = admin_pb2.CreatePublicPrefixRequest(**options, **_prefix(**given))
    with admin.connected() as client:
        show_one(client.prefixes.create(request), admin.as_json)


@command.command("list")
@admin_options
def list_all(admin: Admin) -> None:
    """List all public prefixes."""
    with admin.connected() as client:
        show(client.prefixes.list(), admin.as_json)


@command.command("delete")
@click.argument("prefix_id")
@yes_option
@admin_options
def delete(prefix_id: str, yes: bool, admin: Admin) -> None:
    """End the sharing of a prefix, and purge its KV."""
    confirmed(f"Delete public prefix {prefix_id} with what is cached for it?", yes)
    with admin.connected() as client:
        purged: Purged = client.prefixes.delete(prefix_id)
        show_one(purged, admin.as_json)


def _prefix(text: str | None, text_file: TextIO | None, system: str | None, chat_file: TextIO | None) -> dict[str, Any]:
    if sum(each is not None for each in (text, text_file, system, chat_file)) != 1:
        raise click.UsageError("give exactly one of --text, --file, --system and --chat-file")
    if chat_file is not None:
        return {"chat": _chat(chat_file)}
    if system is not None:
        return {"chat": inference_pb2.ChatPrompt(messages=[inference_pb2.ChatMessage(role="system", content=system)])}
    return {"text": text if text_file is None else text_file.read()}


def _chat(file: TextIO) -> inference_pb2.ChatPrompt:
    try:
        content = json.load(file)
        document = {"messages": content} if isinstance(content, list) else content
        return json_format.ParseDict(document, inference_pb2.ChatPrompt())
    except (ValueError, json_format.ParseError) as error:
        raise click.BadParameter(f"{file.name} holds no chat: {error}", param_hint="--chat-file") from error
