"""What a client may demand of a completion's text, as values. Knows neither tokens nor whoever compiles it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON document that fulfils this JSON schema."""

    schema: str

    @property
    def num_bytes(self) -> int:
        return len(self.schema.encode())


@dataclass(frozen=True, slots=True)
class Regex:
    """Text that this regular expression matches as a whole."""

    pattern: str

    @property
    def num_bytes(self) -> int:
        return len(self.pattern.encode())


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these texts."""

    texts: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        return sum(len(text.encode()) for text in self.texts)


TextConstraint = JsonSchema | Regex | Choice

_FIELDS = {JsonSchema: "json_schema", Regex: "regex", Choice: "choice"}


def field_of(constraint: TextConstraint) -> str:
    """Return the path of the request field that it came from."""
    return f"sampling.{_FIELDS[type(constraint)]}"


class ConstraintError(ValueError):
    """A constraint that cannot be held to; the message says why, for whoever wrote it."""


class TooManyConstraintsError(Exception):
    """More constraints wait to be compiled than this worker takes in."""
