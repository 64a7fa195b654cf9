from datetime import timedelta

import pytest

from cli.parameters import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("15m", 900), ("12h", 43_200), ("7d", 604_800), ("2w", 1_209_600), ("250ms", 0.25), ("1h30m", 5400),
     ("1.5h", 5400), ("45", 45), (" 2.5 ", 2.5), ("0s", 0)],
)  # fmt: skip
def test_a_duration_is_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 s", "5x", "s", "1h 30m", "1e3s", "99999999999d", "٣s"])
def test_anything_else_is_none(text: str) -> None:
    assert parse_duration(text) is None
