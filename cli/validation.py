"""Turns a tree of settings into frozen dataclasses, and faults into sentences with path, value and limit."""

import dataclasses
import difflib
import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from metrics.logs import MASK, mask_value

T = TypeVar("T")

# Sections in which everything is a secret, whatever its name.
SECRET_SECTIONS = frozenset({("gateway", "operators")})

# What a value that fails a predicate should have been, by the predicate's name.
PREDICATES = {
    "is_address": "must read HOST:PORT, with a port from 0 to 65535",
    "is_key_material": "must be 16 to 64 bytes long",
    "is_otlp_endpoint": "must read http://HOST:PORT or https://HOST:PORT, of a collector that receives OTLP over gRPC",
    "is_redis_url": "must read redis://HOST:PORT, rediss://HOST:PORT or unix://PATH",
    "is_storage_url": "must read file:///FOLDER, redis://HOST:PORT/NUMBER, rediss://HOST:PORT/NUMBER or memory://",
    "is_tenant_id": "a tenant's id is 1 to 64 characters out of lower-case letters, digits, - and _",
    "isfinite": "must be a finite number",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with the configuration."""

    path: str  # dotted
    message: str


class ConfigError(Exception):
    """The configuration cannot be used; `faults` names everything found at once."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(f"{fault.path}: {fault.message}" for fault in faults))
        self.faults = tuple(faults)


def validated(shape: type[T], tree: Mapping[str, Any]) -> T:
    """Return `tree` as a `shape`, a dataclass. Types are strict: "8" is no integer, and true is none either."""
    faults = list(_unknown_keys(shape, tree, ()))
    try:
        # As JSON, because arrays then are tuples and whole numbers are floats where those are asked for.
        result = TypeAdapter(shape).validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        faults += _told_once(error)
    if faults:
        raise ConfigError(faults)
    return result


def _unknown_keys(shape: type, tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Fault]:
    sections = typing.get_type_hints(shape)
    names = [field.name for field in dataclasses.fields(shape)]
    for key, value in tree.items():
        here = (*path, key)
        if key not in names:
            yield Fault(".".join(here), f"there is no such setting{_suggestion(key, names, path)}")
        elif dataclasses.is_dataclass(sections[key]) and isinstance(value, Mapping):
            yield from _unknown_keys(typing.cast("type", sections[key]), value, here)
        elif (inner := _values_of_mapping(sections[key])) is not None and isinstance(value, Mapping):
            for name, entry in value.items():
                if isinstance(entry, Mapping):
                    yield from _unknown_keys(inner, entry, (*here, name))


def _values_of_mapping(section: Any) -> type | None:
    """The dataclass that the values of a mapping are, if it is such a one."""
    values = typing.get_args(section)[1:] if typing.get_origin(section) is Mapping else ()
    return typing.cast("type", values[0]) if values and dataclasses.is_dataclass(values[0]) else None


def _suggestion(key: str, names: Sequence[str], path: tuple[str, ...]) -> str:
    if near := difflib.get_close_matches(key, names, n=1, cutoff=0.6):
        return f"; did you mean {'.'.join((*path, near[0]))}?"
    section = ".".join(path)
    return f"; {section or 'the top level'} has {', '.join(names)}"


def _told_once(error: ValidationError) -> list[Fault]:
    return list(dict.fromkeys(_fault(details) for details in error.errors(include_url=False)))


def _fault(details: ErrorDetails) -> Fault:
    path = ".".join(str(part) for part in details["loc"])
    if details["type"] == "value_error":  # two fields that do not go together; the message names both
        return Fault(path, str(details["ctx"]["error"]))
    name = next((part for part in reversed(details["loc"]) if isinstance(part, str)), "")
    is_secret = details["loc"][:2] in SECRET_SECTIONS
    shown = json.dumps(MASK if is_secret else mask_value(name, details["input"]), default=str)
    return Fault(path, f"{shown} is not allowed: {_demand(details)}")


def _demand(details: ErrorDetails) -> str:
    message = details["msg"]
    if details["type"] == "predicate_failed":
        return next((demand for name, demand in PREDICATES.items() if f"'{name}'" in message), message)
    if details["type"] in {"dataclass_type", "dict_type"}:
        return "must be a section with settings inside"
    return message.replace("Input should", "must").replace("String should", "must").replace("List should", "must")
