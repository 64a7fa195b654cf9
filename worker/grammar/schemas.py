"""JSON schemas before they are compiled: what is no schema, and what the compiler is known to get wrong, is refused."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from worker.grammar.conjunctions import is_finite, refuse_explosive
from worker.grammar.constraints import ConstraintError

_COMBINING = ("allOf", "$ref")  # bounds may come together from several places


def object_schema(schema: str) -> str:
    """Return the schema, as an object. Raises ConstraintError where the compiler's words would tell nobody anything."""
    try:
        parsed = json.loads(schema)
    except (ValueError, RecursionError) as error:
        what = "is nested too deeply" if isinstance(error, RecursionError) else f"is not valid JSON: {error}"
        raise ConstraintError(what) from error
    if parsed is False:
        raise ConstraintError("no text fulfils it: the schema is false")
    if parsed is True:
        return "{}"
    if not isinstance(parsed, dict):
        raise ConstraintError("must be a JSON object, true or false")
    objects = list(_objects(parsed))
    _check_bounds(objects)
    refuse_explosive(parsed, objects)
    return schema


def _check_bounds(objects: list[Mapping[str, Any]]) -> None:
    """Refuse numbers between a whole number that is excluded and another bound before the next one.

    llguidance 1.9.1 lets that whole number through: 0, where numbers above 0 and at most 0.5 are wanted.
    """
    if any(keyword in each for each in objects for keyword in _COMBINING):
        together = [bounds for each in objects for bounds in _bounds(each)]
        _refuse_narrow(together)
    for each in objects:
        _refuse_narrow(list(_bounds(each)))


def _refuse_narrow(bounds: list[tuple[str, float]]) -> None:
    exclusive = {excluded: keyword for keyword, excluded in bounds if keyword.startswith("exclusive")}
    for other, bound in bounds:
        excluded = math.trunc(bound)
        keyword = exclusive.get(excluded)
        if keyword is not None and bound != excluded:
            raise ConstraintError(
                f"{keyword} {excluded:g} together with {other} {bound:g} is not supported: there must be a whole "
                "number between the two that is allowed"
            )


def _bounds(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        value = schema.get(keyword)
        if is_finite(value):
            yield keyword, value


def _objects(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object in a JSON value, however deep."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield value
            left += value.values()
        elif isinstance(value, list):
            left += value
