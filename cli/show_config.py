"""Prints a configuration as TOML, with secrets masked. Settings without a value stand as comments."""

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

from cli.config import Config
from cli.validation import SECRET_SECTIONS
from metrics.logs import MASK, mask_value

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def as_toml(config: Config) -> str:
    """Return `config` in a form that `--config` reads back, apart from the secrets."""
    return "\n".join(_lines(dataclasses.asdict(config), ())).strip() + "\n"


def _lines(section: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    values = {name: value for name, value in section.items() if not isinstance(value, dict)}
    if values and path:
        yield f"\n[{'.'.join(map(_key, path))}]"
    for name, value in values.items():
        shown = MASK if path in SECRET_SECTIONS else mask_value(name, value)
        yield f"# {name} is not set" if value is None else f"{_key(name)} = {_value(shown)}"
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _lines(value, (*path, name))


def _key(name: str) -> str:
    """A name as it stands in a header: what a person chose, as the name of a tenant, may need quotes."""
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _value(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(inner) for inner in value)}]"
    # JSON's strings, numbers and booleans are TOML's.
    return json.dumps(value, ensure_ascii=False)
