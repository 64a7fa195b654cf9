"""Kinds of values on the command line: durations such as `12h`, moments, days."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import click

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_LONGEST_S = 1e10


def parse_duration(text: str) -> timedelta | None:
    """Return what `30s`, `12h`, `1h30m` or a plain number of seconds says, or None for what says nothing."""
    text = text.strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        seconds = float(text)
    elif re.fullmatch(f"({_PART.pattern})+", text):
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
    else:
        return None
    return timedelta(seconds=seconds) if seconds <= _LONGEST_S else None


class DurationType(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        duration = parse_duration(str(value))
        if duration is None:
            self.fail(f"{value!r} is no duration; write 30s, 15m, 12h or 7d", param, ctx)
        return duration


class MomentType(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A time of day with its offset from UTC, or a duration from now on."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        duration = parse_duration(str(value))
        if duration is not None:
            return datetime.now(UTC) + duration
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            self.fail(
                f"{value!r} is no time; write 2026-12-31T23:59:59Z, or how long from now, such as 30d", param, ctx
            )
        return moment


class DayType(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A day of UTC. Handed on as text, once it is known to be one."""

    name = "day"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return date.fromisoformat(str(value)).isoformat()
        except ValueError:
            self.fail(f"{value!r} is no day; write YYYY-MM-DD", param, ctx)


DURATION = DurationType()
MOMENT = MomentType()
DAY = DayType()
