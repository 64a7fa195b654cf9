"""What the README tells people to type exists."""

import re
import shlex
import sys
from pathlib import Path

import click
import pytest

from cli.main import main
from tests.tools import REPOSITORY, require_tool

BLOCKS = re.findall(r"^```\n(.*?)^```", (REPOSITORY / "README.md").read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
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
