"""What the README tells people to type exists."""

import re
import shlex
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import click
import pytest

from cli.config import config_from
from cli.main import main
from tests.tools import REPOSITORY, require_tool
from worker.config import CacheConfig, StorageConfig

README = (REPOSITORY / "README.md").read_text("utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
BLOCKS = [text for kind, text in FENCED if not kind]
COMMANDS = re.findall(r"^(?:\$ )?((?:\.venv/bin/|node ).*)$", "".join(BLOCKS).replace("\\\n", " "), re.MULTILINE)


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith(".venv/bin/radixgate")])
def test_a_command_is_known_with_its_options(line: str) -> None:
    command: click.Command = main
    words = shlex.split(line)[1:]
    while isinstance(command, click.Group):
        known = command.get_command(click.Context(command), words.pop(0))
        assert known is not None
        command = known
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_programs_and_files_are_where_it_says() -> None:
    for program in {Path(line.split()[0]) for line in COMMANDS if line.startswith(".venv/")}:
        assert Path(require_tool(program.name, "make install")).parent == Path(sys.executable).parent
    for script in {line.split()[1] for line in COMMANDS if line.startswith("node ")}:
        assert (REPOSITORY / script).is_file()
    assert {"node", ".venv/bin/grpcurl", ".venv/bin/radixgate"} == {line.split()[0] for line in COMMANDS}


def test_settings_in_files_are_ones_that_are_taken() -> None:
    config = config_from(tomllib.loads("\n".join(text for kind, text in FENCED if kind == "toml")))
    assert config.worker.cache.storage.url is not None
    assert config.worker.cache.shares["acme"].floor == 0.25


def test_settings_in_the_table_of_tiers_are_all_that_there_are() -> None:
    table = README[README.index("| `worker.cache.` |") :].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w.]+)`", row.split(" | ")[0])}
    there_are = {field.name for field in fields(CacheConfig)} | {
        f"storage.{field.name}" for field in fields(StorageConfig)
    }
    elsewhere = {"num_slots", "memory_bytes", "page_size", "hit_threshold", "storage", "shares"}
    assert named == there_are - elsewhere
