import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cli.progress import BarProgress, JsonProgress, LineProgress, parse_progress, reporter_for


@given(st.text(), st.floats(0, 1))
def test_reports_survive_the_pipe(stage: str, fraction: float) -> None:
    stream = io.StringIO()
    JsonProgress(stream).report(stage, fraction)
    assert stream.getvalue().count("\n") == 1
    assert parse_progress(stream.getvalue()) == (stage, fraction)


@given(st.text())
def test_any_other_line_is_no_report(line: str) -> None:
    assert parse_progress(line) is None


def test_a_line_for_the_beginning_and_the_end_of_each_stage() -> None:
    stream = io.StringIO()
    with LineProgress(Console(file=stream)) as progress:
        for fraction in (0.0, 0.5, 1.0, 1.0):
            progress.report("loading weights", fraction)
    assert stream.getvalue().splitlines() == ["loading weights …", "loading weights: done"]


def test_bars_are_drawn_on_a_terminal_only() -> None:
    assert isinstance(reporter_for(Console(file=io.StringIO())), LineProgress)
    terminal = io.StringIO()
    with reporter_for(Console(file=terminal, force_terminal=True)) as progress:
        assert isinstance(progress, BarProgress)
        progress.report("loading [weights", 0.5)
        progress.report("loading [weights", 1.0)
    assert "loading [weights" in terminal.getvalue()


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "file"])
def test_finishing_early_and_twice_is_harmless_and_ends_the_drawing(terminal: bool) -> None:
    stream = io.StringIO()
    with reporter_for(Console(file=stream, force_terminal=terminal)) as progress:
        progress.report("loading", 1.0)
        progress.finish()
        shown = stream.getvalue()
        progress.finish()
    assert stream.getvalue() == shown
