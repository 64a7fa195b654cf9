"""What docs/tenants.md tells people to type and to set exists."""

import os
import re
import shlex
import tomllib
from dataclasses import fields
from typing import Any

import click
import pytest

from cli.config import config_from
from cli.isolation_check.plan import NAMES
from cli.main import main
from gateway.policy import TenantPolicy
from tests.tools import REPOSITORY

DOCUMENT = (REPOSITORY / "docs" / "tenants.md").read_text("utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```", DOCUMENT, flags=re.DOTALL | re.MULTILINE)
COMMANDS = [line for kind, text in FENCED if not kind for line in text.splitlines()]


def table_below(heading: str) -> list[str]:
    """Return the first cells of the table below a heading, as they are written between backquotes."""
    rows = [line for line in DOCUMENT.split(heading)[1].split("\n## ")[0].splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_takes_what_it_is_given(line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "radixgate"
    command: click.Command = main
    context = click.Context(command)
    while isinstance(command, click.Group):
        known = command.get_command(context, words.pop(0))
        assert known is not None
        command = known
    # Files that are only named here need not be there.
    opened = {option for parameter in command.params if _opens(parameter) for option in parameter.opts}
    named: list[Any] = [
        os.devnull if before in opened else word for before, word in zip(["", *words], words, strict=False)
    ]
    command.make_context(line, named)


def _opens(parameter: click.Parameter) -> bool:
    return isinstance(parameter.type, click.File) or (isinstance(parameter.type, click.Path) and parameter.type.exists)


def test_settings_are_ones_that_are_taken() -> None:
    gateway = config_from(tomllib.loads("\n".join(text for kind, text in FENCED if kind == "toml"))).gateway
    assert set(gateway.operators) == {"alice"}
    assert gateway.policies.default.requests_per_minute == 600
    assert gateway.policies.tenants["acme"].tokens_per_minute == 500_000
    assert gateway.jwt.enabled
    assert gateway.tls.client_tenants == {"batch.acme.example": "acme"}


def test_the_table_of_a_policy_is_whole() -> None:
    assert set(table_below("## Tenants and policies")) - {"max_deadline"} == {
        each.name for each in fields(TenantPolicy)
    }


def test_the_table_of_checks_is_whole() -> None:
    assert set(table_below("## Checking isolation")) == set(NAMES)
