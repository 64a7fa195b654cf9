"""Amounts with units on the command line and in tables: bytes, bytes per second, times."""

import re
from typing import Any

import click

_FACTORS = {
    "": 1,
    "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40,
}  # fmt: skip
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?I?)(?:B(?:/S)?)?")
_BINARY = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_MOST_BYTES = 1 << 60


class BytesType(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """`80GiB`, `80GB`, `512Mi` or a number of bytes. Handed on as bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        amount = parse_bytes(str(value))
        if amount is None:
            self.fail(f"{value!r} is no amount of bytes; write 80GiB, 80GB or a number of bytes", param, ctx)
        return amount


BYTES = BytesType()


def parse_bytes(text: str) -> int | None:
    """Return the bytes that `80GiB`, `25GB/s` or `1024` say, or None for what says nothing."""
    found = _AMOUNT.fullmatch(text.strip().upper())
    if found is None or found.group(2) == "I":
        return None
    amount = round(float(found.group(1)) * _FACTORS[found.group(2)])
    return amount if amount <= _MOST_BYTES else None


def shown_bytes(num_bytes: int) -> str:
    """Return an amount for people, in the largest unit of which there is one."""
    for unit, factor in _BINARY:
        if abs(num_bytes) >= factor:
            return f"{num_bytes / factor:,.2f} {unit}"
    return f"{num_bytes} B"


def shown_seconds(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:,.3g} {unit}"
    return f"{seconds * 1e6:,.3g} µs"
