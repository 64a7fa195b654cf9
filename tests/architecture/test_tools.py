"""Tests that lack a tool say so, and CI does not let them pass by that."""

import pytest

from tests.tools import require_tool


def test_a_tool_that_is_there_is_found_beside_python_first() -> None:
    assert require_tool("pytest", "make install").endswith("bin/pytest")


def test_a_missing_tool_skips_with_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RADIXGATE_REQUIRE_TOOLS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-tool is not installed; grow one"):
        require_tool("no-such-tool", "grow one")


def test_in_ci_a_missing_tool_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIXGATE_REQUIRE_TOOLS", "1")
    with pytest.raises(pytest.fail.Exception, match="no-such-tool is not installed; grow one"):
        require_tool("no-such-tool", "grow one")
