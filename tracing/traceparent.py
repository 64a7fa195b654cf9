"""The `traceparent` of W3C Trace Context: which trace a request belongs to, and which span it comes from.

https://www.w3.org/TR/trace-context/
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

HEADER = "traceparent"

_MAX_CHARS = 512  # later versions may append something; nobody needs to append a book
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_SAMPLED = 1


@dataclass(frozen=True, slots=True)
class SpanContext:
    """Names one span of one trace."""

    trace_id: str  # 32 lower-case hexadecimal digits, not all zero
    span_id: str  # 16 of them, not all zero
    sampled: bool = True

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"


def parse_traceparent(value: str) -> SpanContext | None:
    """Return what a `traceparent` names, or None for one that breaks the specification. Never raises."""
    if len(value) > _MAX_CHARS:
        return None
    found = _FORM.fullmatch(value)
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest is not None):
        return None
    if not (trace_id.strip("0") and span_id.strip("0")):
        return None
    return SpanContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def traceparent_in(headers: Iterable[tuple[str, str | bytes]]) -> SpanContext | None:
    """Return the one that headers or metadata name. Two of them name none."""
    values = [value for name, value in headers if name == HEADER]
    if len(values) != 1 or not isinstance(values[0], str):
        return None
    return parse_traceparent(values[0])
