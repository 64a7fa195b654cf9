"""The `radixgate` command itself: finds the subcommand that was asked for and loads only that one."""

import importlib
import os
from typing import Any

import click

from cli.first_process import end_on_sigterm
from cli.validation import ConfigError

# A subcommand's module is loaded when it runs: `radixgate chat` needs no torch, and none waits for it.
_COMMANDS = {
    "serve": "Serve all in one: Redis, a worker and a gateway.",
    "gateway": "Run a gateway.",
    "worker": "Run a worker.",
    "tenant": "Create, change, suspend and delete tenants.",
    "key": "Create, rotate, list and revoke API keys.",
    "adapter": "Register, load and list LoRA adapters.",
    "prefix": "Register prefixes that all tenants share.",
    "cache": "Show what is cached, and invalidate it.",
    "usage": "Show what a tenant has used.",
    "audit": "Show what operators have done.",
    "isolation-check": "Check on a running deployment that tenants are isolated.",
    "chat": "Chat with a model.",
    "top": "Watch workers, gateways and tenants of a running deployment.",
    "size": "Say what a model's KV takes, how much fits, and what to set.",
    "replay": "Replay a recorded trace through the cache and report its hit rate.",
}

# What libraries read of the environment when they are loaded, unless it is set already. Behind a step a worker's
# compute threads spin for half a millisecond and then sleep. By default they spin for several: that takes a core from
# the gateway, and from what the worker does between steps. Sleeping at once costs more where torch computes: each of
# its layers would wake them.
_ENVIRONMENT = {"worker": {"GOMP_SPINCOUNT": "20000"}}
# gRPC writes a line of its own for each TLS handshake that fails: anybody could fill a gateway's log with them.
_ENVIRONMENT_OF_ALL = {"GRPC_VERBOSITY": "ERROR"}

# Which extra brings a module that a subcommand could not import.
_EXTRAS = {
    "jinja2": "gateway",
    "redis": "gateway",
    "tokenizers": "gateway",
    "torch": "worker",
    "transformers": "worker",
}


class LazyCommands(click.Group):
    """A group whose commands are modules of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        end_on_sigterm()
        for variable, value in (_ENVIRONMENT_OF_ALL | _ENVIRONMENT.get(cmd_name, {})).items():
            os.environ.setdefault(variable, value)
        try:
            module = importlib.import_module(f"cli.{cmd_name.replace('-', '_')}")
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get(str(error.name).partition(".")[0])
            if extra is None:
                raise
            raise click.ClickException(
                f"`radixgate {cmd_name}` needs the Python package {error.name}; "
                f"install the extra that brings it: pip install 'radixgate[{extra}]'"
            ) from error
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise click.ClickException(f"the configuration cannot be used\n{error}") from error


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="radixgate", message="radixgate %(version)s")
def main() -> None:
    """Multi-tenant LLM serving with a KV cache that tenants never share by accident."""
