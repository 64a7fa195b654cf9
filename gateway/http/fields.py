"""Reads JSON objects field by field, and knows which fields nobody has read: those are refused by name."""

from collections.abc import Mapping
from typing import Any

from gateway.errors import InvalidRequestError, Violation
from gateway.identity.claims import claims_identity

MAX_VIOLATIONS = 16
INT32 = (-(2**31), 2**31 - 1)

_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def kind_of(value: object) -> str:
    return _KINDS[type(value)]


class Violations:
    """What is wrong with a request so far. Beyond a few, more would help nobody."""

    def __init__(self) -> None:
        self._found: list[Violation] = []
        self.claims_identity = False

    def add(self, field: str, description: str) -> None:
        if len(self._found) < MAX_VIOLATIONS:
            self._found.append(Violation(field, description))

    def raise_any(self) -> None:
        """Raise InvalidRequestError if there are any."""
        if self._found:
            raise InvalidRequestError(self._found, reason="IDENTITY_CLAIMED" if self.claims_identity else None)


class Fields:
    """The fields of one object, which stands at `path`. null is the same as absent."""

    def __init__(self, values: Mapping[str, Any], violations: Violations, path: str = "") -> None:
        self._values = values
        self._unread = {name for name, value in values.items() if value is not None}
        self._path = path
        self.violations = violations

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def names(self) -> list[str]:
        return list(self._values)

    def path_of(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def refuse(self, name: str, description: str) -> None:
        self.violations.add(self.path_of(name), description)

    def value(self, name: str) -> Any:
        """Return the value whatever it is, or None."""
        self._unread.discard(name)
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        found: str | None = self._typed(name, str)
        return found

    def flag(self, name: str) -> bool | None:
        found: bool | None = self._typed(name, bool)
        return found

    def items(self, name: str) -> list[Any] | None:
        found: list[Any] | None = self._typed(name, list)
        return found

    def inner(self, name: str) -> "Fields | None":
        """Return the fields of an object inside this one."""
        found = self._typed(name, dict)
        return None if found is None else Fields(found, self.violations, self.path_of(name))

    def integer(self, name: str, bounds: tuple[int, int] = INT32) -> int | None:
        """Return an integer that the API can hold; what it means is for others to judge."""
        found: int | None = self._typed(name, int)
        if found is not None and not bounds[0] <= found <= bounds[1]:
            self.refuse(name, f"is out of range; must be {bounds[0]} to {bounds[1]}")
            return None
        return found

    def number(self, name: str) -> float | None:
        value = self.value(name)
        if value is None or type(value) is float:
            return value
        if type(value) is not int:
            self.refuse(name, f"is {kind_of(value)}; must be a number")
            return None
        try:
            return float(value)
        except OverflowError:
            self.refuse(name, "is a number that is too large")
            return None

    def texts(self, name: str) -> list[str] | None:
        """Return a list of strings."""
        found = self.items(name)
        for i, item in enumerate(found or ()):
            if type(item) is not str:
                self.refuse(f"{name}[{i}]", f"is {kind_of(item)}; must be a string")
                return None
        return found

    def integers(self, name: str) -> list[int] | None:
        """Return a list of 32-bit integers."""
        found = self.items(name)
        if found is not None and (fault := not_integers(found)):
            self.refuse(f"{name}[{fault[0]}]", fault[1])
            return None
        return found

    def ignore(self, *names: str) -> None:
        """These have no effect here, whatever they say."""
        self._unread.difference_update(names)

    def refuse_rest(self) -> None:
        """Refuse what nobody has asked for."""
        for name in sorted(self._unread):
            shown = name[:64] or '""'
            if claims_identity(name):
                self.violations.claims_identity = True
                self.refuse(shown, "identity and cache namespace come from the credential; remove this field")
            else:
                self.refuse(shown, "is not supported here")

    def _typed(self, name: str, kind: type) -> Any:
        value = self.value(name)
        if value is None or type(value) is kind:
            return value
        self.refuse(name, f"is {kind_of(value)}; must be {kind_of(kind())}")
        return None


def not_integers(values: list[Any]) -> tuple[int, str] | None:
    """Return the place of the first value that is no 32-bit integer, and what is wrong with it."""
    for i, value in enumerate(values):
        if type(value) is not int:
            return i, f"is {kind_of(value)}; must be an integer"
        if not INT32[0] <= value <= INT32[1]:
            return i, f"is out of range; must be {INT32[0]} to {INT32[1]}"
    return None
