"""What a JSON schema demands of one value at once: combinations that would cost the compiler minutes and gigabytes.

llguidance 1.9.1 counts neither the work of intersecting expressions, which doubles with each of them, nor that of
remainders, of which there are as many as the number that is to divide, nor compares patterns of properties in less than
the square of their number. So all three are bounded here. Knows schemas as values of JSON, and nothing of tokens.
"""

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from worker.grammar.constraints import ConstraintError

_MAX_EXPRESSIONS = 8  # that a string must match at once; 14 take half a second, 24 several minutes
_MAX_REMAINDERS = 10_000  # of all divisors together; 100,000 take seconds, and 40 MB as long as the schema is kept
_MAX_PATTERN_PROPERTIES = 32  # of one object; 300 take a second

_EXPRESSIONS = ("pattern", "format")
_DIVISOR = "multipleOf"

Demand = tuple[str, str]
"""Keyword and value."""


def refuse_explosive(schema: Mapping[str, Any], objects: list[Mapping[str, Any]]) -> None:
    """Raise ConstraintError for a schema that demands too much at once. `objects` are all that lie in it."""
    for each in objects:
        patterns = each.get("patternProperties")
        if isinstance(patterns, dict) and len(patterns) > _MAX_PATTERN_PROPERTIES:
            raise ConstraintError(
                f"patternProperties has {len(patterns)} patterns; at most {_MAX_PATTERN_PROPERTIES} are supported"
            )
    found = _Demands(schema, objects)
    remainders: dict[frozenset[Demand], int] = {}
    try:
        for each in objects:
            together = found.of(each)
            num_expressions = sum(keyword in _EXPRESSIONS for keyword, _ in together)
            if num_expressions > _MAX_EXPRESSIONS:
                raise ConstraintError(
                    f"a string would have to match {num_expressions} patterns and formats at once, or more; at most "
                    f"{_MAX_EXPRESSIONS} are supported"
                )
            divisors = frozenset(demand for demand in together if demand[0] == _DIVISOR)
            remainders[divisors] = math.prod(_num_remainders(value) for _, value in divisors) if divisors else 0
    except RecursionError as error:
        raise ConstraintError("is nested too deeply") from error
    if sum(remainders.values()) > _MAX_REMAINDERS:
        raise ConstraintError(
            f"the values of multipleOf are too large: all together, and multiplied with each other where they hold for "
            f"the same number, they may make {_MAX_REMAINDERS}"
        )


class _Demands:
    """What each object of a schema demands of a string or a number; a few more than there may be, if there are."""

    def __init__(self, root: Mapping[str, Any], objects: list[Mapping[str, Any]]) -> None:
        self._root = root
        self._objects = objects
        self._known: dict[int, frozenset[Demand]] = {}  # by identity of the object

    def of(self, schema: Any) -> frozenset[Demand]:
        """Return the demands of a schema, of what it refers to, and of the most demanding of its alternatives."""
        if not isinstance(schema, dict):
            return frozenset()
        known = self._known.get(id(schema))
        if known is not None:
            return known
        self._known[id(schema)] = frozenset()  # in a circle nothing is added
        found = set(_own_demands(schema))
        for part in _listed(schema, "allOf"):
            found |= self.of(part)
        for keyword in ("anyOf", "oneOf"):
            found |= max((self.of(part) for part in _listed(schema, keyword)), key=len, default=frozenset())
        if isinstance(schema.get("$ref"), str):
            found |= self._of_reference(schema["$ref"])
        kept = frozenset(sorted(found)[: 2 * _MAX_EXPRESSIONS])
        self._known[id(schema)] = kept
        return kept

    def _of_reference(self, reference: str) -> frozenset[Demand]:
        target = _follow(self._root, reference)
        if target is not None:
            return self.of(target)
        # It goes by a name or an address: to any of them.
        return frozenset(demand for each in self._objects for demand in _own_demands(each))


def is_finite(value: Any) -> bool:
    """Whether a value of JSON is a number. Whole numbers may be larger than any float."""
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and math.isfinite(value)
    )


def _own_demands(schema: Mapping[str, Any]) -> Iterator[Demand]:
    for keyword in _EXPRESSIONS:
        if isinstance(schema.get(keyword), str):
            yield keyword, schema[keyword]
    divisor = schema.get(_DIVISOR)
    if is_finite(divisor):
        yield _DIVISOR, str(divisor)


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    parts = schema.get(keyword)
    return parts if isinstance(parts, list) else []


def _follow(root: Mapping[str, Any], reference: str) -> Any:
    """Return what a JSON pointer within the document (RFC 6901) leads to; None: it is none, or leads nowhere."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    at: Any = root
    for step in reference.split("/")[1:]:
        if not isinstance(at, dict):
            return None
        at = at.get(step.replace("~1", "/").replace("~0", "~"))
    return at


def _num_remainders(divisor: str) -> int:
    """The divisor without its decimal point: 25 of 0.25."""
    digits = int("".join(map(str, Decimal(divisor).normalize().as_tuple().digits)))
    exponent = Decimal(divisor).normalize().as_tuple().exponent
    return digits * 10 ** max(0, min(exponent, 18)) if isinstance(exponent, int) else digits
