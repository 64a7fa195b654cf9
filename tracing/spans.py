"""Spans as values, and the port that they leave through."""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from tracing.traceparent import SpanContext

Attribute = str | bool | int | float | tuple[str, ...]
Attributes = Mapping[str, Attribute]

_MAX_CHARS = 256


class Kind(Enum):
    """On which side of a call a span lies."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at one moment of a span."""

    name: str
    at_ns: int  # since the epoch
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a request's life that is over. Invariant: start_ns <= end_ns, both since the epoch."""

    name: str
    context: SpanContext
    parent_id: str | None  # in the same trace
    start_ns: int
    end_ns: int
    kind: Kind = Kind.INTERNAL
    attributes: Attributes = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    error: str | None = None  # what went wrong, in a word; None: nothing did


class SpanSink(Protocol):
    """Takes spans to where they are kept."""

    @property
    def wanted(self) -> bool:
        """Whether spans go anywhere."""
        ...

    def put(self, spans: Sequence[Span]) -> None:
        """Take spans in. From any thread; returns at once, and fails nobody."""
        ...

    def close(self, timeout_s: float) -> None:
        """Bring what is left to where it is kept, and end. Returns after `timeout_s` at the latest, done or not."""
        ...


class NoSpans:
    """The sink of a process that records nothing."""

    wanted = False

    def put(self, spans: Sequence[Span]) -> None:
        pass

    def close(self, timeout_s: float) -> None:
        pass


class Epoch:
    """Turns moments of `time.monotonic` into time since the epoch, all by one reading of both clocks.

    So the spans made with one never overlap or gape because somebody has set the clock.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def ns(self, at: float) -> int:
        return self._offset_ns + round(at * 1e9)


def new_trace_id() -> str:
    return _nonzero(16)


def new_span_id() -> str:
    return _nonzero(8)


def shortened(attributes: Attributes) -> dict[str, Attribute]:
    """Return attributes where no text is longer than anybody reads: some of it is what callers chose."""
    return {
        name: value[:_MAX_CHARS] if isinstance(value, str) else value
        for name, value in attributes.items()
        if value not in ("", ())
    }


def _nonzero(num_bytes: int) -> str:
    while not (drawn := secrets.token_hex(num_bytes)).strip("0"):
        pass
    return drawn
