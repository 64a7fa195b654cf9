"""What a running part of the product keeps: every container that can be reached from it, and how full it is."""

import types
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

_LOOKED_INTO: Final = ("gateway", "metrics", "hicache", "prometheus_client", "tracing", "transport", "worker")
_CONTAINERS: Final = (dict, list, set, frozenset, deque)
_LEAVES: Final = (str, bytes, int, float, type, type(None), types.ModuleType, types.FunctionType, types.CodeType)
_MAX_ITEMS: Final = 50  # of one container that are looked into: what grows holds much of a kind


def kept(root: object) -> dict[str, int]:
    """Return the length of each container by where it is, as in `app.serving.fleet._links`."""
    lengths: dict[str, int] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, object]] = [("", root)]
    while waiting:
        path, thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, _LEAVES):
            continue
        seen.add(id(thing))
        if isinstance(thing, _CONTAINERS):
            lengths[path] = max(len(thing), lengths.get(path, 0))
        waiting.extend((path + step, found) for step, found in _within(thing))
    return lengths


def grown(before: dict[str, int], after: dict[str, int], by: int) -> dict[str, int]:
    """Return the lengths of those that have at least so many more, by the last name of their path."""
    return {path.rpartition(".")[2]: length for path, length in after.items() if length - before.get(path, 0) >= by}


def _within(thing: object) -> Iterator[tuple[str, object]]:
    if isinstance(thing, dict):
        for key, value in list(thing.items())[:_MAX_ITEMS]:
            # Few string keys are names of parts; many are what something is kept by.
            yield f"[{key!r}]" if isinstance(key, str) and len(thing) < _MAX_ITEMS else "[]", value
    elif isinstance(thing, (list, set, frozenset, deque, tuple)):
        for value in list(thing)[:_MAX_ITEMS]:
            yield "[]", value
    elif isinstance(thing, types.MethodType):
        yield "", thing.__self__
    elif type(thing).__module__.startswith(_LOOKED_INTO):
        yield from ((f".{name}", value) for name, value in _attributes(thing))


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(thing, "__dict__", {}).items()
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(thing, name):
                yield name, getattr(thing, name)
