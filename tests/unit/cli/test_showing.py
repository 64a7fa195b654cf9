"""What commands print: whole values in tables that fit, lines where they don't, and words that are true."""

import dataclasses
import json
from collections.abc import Callable

import pytest

from cli.showing import show, show_one


@dataclasses.dataclass(frozen=True)
class Inner:
    cache_floor_tokens: int | None = None
    models: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Value:
    key_id: str
    display_name: str = ""
    models: tuple[str, ...] = ()
    unreachable_workers: tuple[str, ...] = ()
    num_tokens: int = 0
    revoke_time: str | None = None
    policy: Inner = dataclasses.field(default_factory=Inner)


ID = "0123456789abcdef"
Terminal = Callable[[int], None]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard output a terminal of so many columns."""

    def make(columns: int) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))

    return make


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_a_table_shows_every_value_whole_and_no_column_that_is_empty(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(100)
    show([Value(ID, "laptop", num_tokens=7), Value(ID, num_tokens=1234)], as_json=False)
    header, *words, first, second = printed(capsys)
    assert "revoke" not in " ".join([header, *words])
    assert first.split() == [ID, "laptop", "all", "none", "7"]
    assert second.split() == [ID, "all", "none", "1234"]
    assert len(first) == len(second)  # numbers end at one place


@pytest.mark.parametrize("columns", [20, 40, 60, 200])
def test_nothing_is_shortened_however_narrow_the_terminal(
    terminal: Terminal, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    terminal(columns)
    show([Value(ID, "a name for people", models=("model-of-some-length",)) for _ in range(2)], as_json=False)
    out = capsys.readouterr().out
    assert out.count(ID) == out.count("a name for people") == out.count("model-of-some-length") == 2
    assert "…" not in out


def test_what_is_too_wide_for_a_table_is_printed_as_lines(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(30)
    show([Value(ID, "laptop"), Value(ID)], as_json=False)
    lines = printed(capsys)
    assert lines[0] == f"key id:              {ID}"
    assert lines.count("") == 1  # between the two
    assert lines.count("display name:        laptop") == 1


def test_values_stand_below_each_other_also_behind_long_names(capsys: pytest.CaptureFixture[str]) -> None:
    show_one(Value(ID, policy=Inner(cache_floor_tokens=5)), as_json=False)
    assert printed(capsys) == [
        "key id:              " + ID, "display name:", "models:              all", "unreachable workers: none",
        "num tokens:          0", "revoke time:", "policy:", "  cache floor tokens: 5",
    ]  # fmt: skip


def test_pipes_get_every_column_and_scripts_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    show([Value(ID)], as_json=False)
    assert capsys.readouterr().out == f"{ID}\t\tall\tnone\t0\t\n"
    show([Value(ID)], as_json=True)
    assert json.loads(capsys.readouterr().out)[0]["unreachable_workers"] == []


def test_nothing_to_show_is_said(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(80)
    show([], as_json=False)
    assert printed(capsys) == ["none"]
