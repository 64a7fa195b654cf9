"""What pages name, looked up in the product: settings, metrics, modules."""

import importlib.util
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cli.config import Config
from metrics.catalogue import by_series, catalogue
from tests.tools import REPOSITORY

_METRIC = re.compile(r"(?<!:)\bradixgate_[a-z0-9_]*[a-z0-9]\b(?![*{]?_)")
_RULE = re.compile(r"\b(?:radixgate|namespace[a-z_]*):[a-z0-9_:]+")
_RULES = REPOSITORY / "deploy" / "helm" / "radixgate" / "files" / "rules"


def metrics_of(text: str) -> set[str]:
    """Return what reads like the name of a metric or of a recording rule of ours."""
    return {*_METRIC.findall(text), *_RULE.findall(text)}


@cache
def known_metrics() -> frozenset[str]:
    return frozenset({*by_series(), *(family.name for family in catalogue()), *_recorded()})


def known_metric(name: str) -> bool:
    return name in known_metrics()


def _recorded() -> set[str]:
    groups = [group for file in _rule_files() for group in (yaml.safe_load(file.read_text()) or {}).get("groups", [])]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


def _rule_files() -> list[Path]:
    return sorted(_RULES.glob("*.yaml"))


def is_setting(path: str) -> bool:
    """Whether a dotted path is a section or a value of the configuration."""
    at: Any = Config
    for name in path.split("."):
        if at is None:
            return False
        at = _inside(at, name)
    return at is not None


def is_module(path: str) -> bool:
    """Whether a dotted path is a module, or something in one."""
    package = path.partition(".")[0]
    parts = path.split(".")
    folder = REPOSITORY.joinpath(*parts)
    return (
        folder.is_dir()
        or folder.with_suffix(".py").is_file()
        or folder.parent.with_suffix(".py").is_file()
        or importlib.util.find_spec(package) is None
    )


def _inside(kind: Any, name: str) -> Any | None:
    """Return the type of a setting in a section, or None where there is none of that name."""
    for each in _alternatives(kind):
        if is_dataclass(each) and isinstance(each, type):
            hints = typing.get_type_hints(each)
            if name in {field.name for field in fields(each)}:
                return hints[name]
        elif typing.get_origin(each) in {dict, Mapping} and re.fullmatch(r"[\w-]+", name):
            return typing.get_args(each)[1]
    return None


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) is typing.Annotated:
        return _alternatives(typing.get_args(kind)[0])
    if typing.get_origin(kind) in {typing.Union, types.UnionType}:
        return typing.get_args(kind)
    return (kind,)
