"""Every fenced block of every page has a kind that something checks, or says why it is not checked."""

import configparser
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator

import click
import promql_parser
import pytest
import yaml

from cli.config import config_from
from cli.main import main
from tests.docs.names import known_metric, metrics_of
from tests.docs.pages import BLOCKS, Block
from tests.docs.test_running_pages import RUN
from tests.docs.transcript import commands_and_output, matches

# Of what is not run (drawings, commands for clusters and servers), at most this part of all commands.
LARGEST_PART_NOT_RUN = 0.5

# Before a command: a prompt, variables, what it runs under.
_PREFIXES = re.compile(r"^(?:sudo (?:-\S+ )*|nohup |exec |[A-Z_]+=\S* )*")


def check_toml(text: str) -> None:
    config_from(tomllib.loads(text))


def check_json(text: str) -> None:
    json.loads(text)


def check_yaml(text: str) -> None:
    assert any(document is not None for document in yaml.safe_load_all(text))


def check_ini(text: str) -> None:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(text)
    assert parser.sections()


def check_promql(text: str) -> None:
    for expression in re.split(r"\n\s*\n", re.sub(r"#.*", "", text)):
        promql_parser.parse(expression.strip())
        unknown = {name for name in metrics_of(expression) if not known_metric(name)}
        assert unknown == set(), f"no metric of ours: {unknown}"


def check_python(text: str) -> None:
    compile(text, "page", "exec")


CHECKS: dict[str, Callable[[str], None]] = {
    "toml": check_toml,
    "json": check_json,
    "yaml": check_yaml,
    "ini": check_ini,
    "promql": check_promql,
    "python": check_python,
}


def by_place(blocks: list[Block]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", blocks, ids=[block.where for block in blocks])


def test_every_block_has_a_kind_that_is_checked_or_says_why_not() -> None:
    checked = {*RUN, *CHECKS}
    loose = [
        f"{block.where} ({block.kind or 'no kind'})"
        for block in BLOCKS
        if block.not_run is None and block.kind not in checked and not block.is_output
    ]
    assert loose == []


def test_a_reason_for_not_running_something_is_one() -> None:
    for block in BLOCKS:
        assert block.not_run is None or len(block.not_run.split()) >= 2, block.where


def test_most_commands_are_run() -> None:
    commands = [block for block in BLOCKS if block.kind in RUN]
    not_run = [block for block in commands if block.not_run is not None]
    assert len(not_run) <= LARGEST_PART_NOT_RUN * len(commands), [(each.where, each.not_run) for each in not_run]


@by_place([block for block in BLOCKS if block.kind in CHECKS])
def test_a_block_reads_as_what_it_says_it_is(block: Block) -> None:
    CHECKS[block.kind](block.text)


@by_place([block for block in BLOCKS if block.kind in {"sh", "console", "ini"} and "radixgate " in block.text])
def test_commands_are_known_with_their_options(block: Block) -> None:
    for line in radixgate_commands(block):
        resolve(line)


def radixgate_commands(block: Block) -> Iterator[str]:
    """Yield the commands of a block that call `radixgate`, also where the block is not run."""
    text = block.text
    if block.kind == "console":
        text = "\n".join(command for command, _ in commands_and_output(text))
    for line in re.sub(r"\\\n", " ", text).splitlines():
        command = _PREFIXES.sub("", line.removeprefix("ExecStart=").strip())
        if re.match(r"(\S*/)?radixgate\s", command):
            yield command


def resolve(line: str) -> None:
    """Raise unless a command exists and takes the options that it is given."""
    words = shlex.split(re.split(r"\s(?:\||>|2>|&|<|;)", line)[0], comments=True)[1:]
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        known = command.get_command(click.Context(command), words.pop(0))
        assert known is not None, line
        command = known
    options = {name for parameter in command.params for name in parameter.opts} | {"--help", "-h", "--version"}
    unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - options
    assert unknown == set(), line


def test_radixgate_commands_are_found_wherever_they_stand() -> None:
    text = "ExecStart=/bin/radixgate worker\nFOO=1 radixgate chat\n.venv/bin/radixgate top \\\n -x\nmake radixgate\n"
    block = Block("page", 1, "sh", text, None, (), None)
    assert [shlex.split(line)[1] for line in radixgate_commands(block)] == ["worker", "chat", "top"]


@pytest.mark.parametrize(
    ("expected", "output", "agree"),
    [
        ("a  b\n\nc", "a b\nc\n", True),
        ("first … last", "first of\nall last", True),
        ("took 0.25 s, 3 hits", "took 11.4 s, 3 hits", True),
        ("took 0.25 s, 3 hits", "took 0.25 s, 4 hits", False),
        ("a", "ab", False),
        ("…", "", True),
        ("(a|b)", "a", False),
    ],
)
def test_output_agrees_but_for_ellipses_times_and_columns(expected: str, output: str, agree: bool) -> None:
    assert matches(expected, output) is agree


def test_nothing_is_installed_where_the_tests_run() -> None:
    installs = re.compile(r"\b(?:pip|apt|apt-get|npm|make) (?:\S+ )*install\b")
    run = [block for block in BLOCKS if block.kind in RUN and block.not_run is None]
    assert [block.where for block in run if installs.search(block.text)] == []
