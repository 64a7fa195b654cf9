"""What the rooms share: bounds of names, refusals, times, pages."""

import base64
import binascii
import itertools
from collections.abc import Callable, Sequence

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.message import Message

from gateway.errors import InvalidRequestError, Violation
from gateway.policy import is_tenant_id

MAX_NAME_CHARS = 128
MAX_NAMES = 64
DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000

_MAX_SECONDS = 253_402_300_799  # the end of the year 9999, the last that a Timestamp can say
_NANOS = 10**9
_MAX_FRAME_BYTES = 8  # of an entry's tag and length


def check_id(field: str, value: str) -> list[Violation]:
    """Check an id that its operator chooses: those of tenants and of public prefixes have the same form."""
    if is_tenant_id(value):
        return []
    return [Violation(field, "must be 1 to 64 characters out of lower-case letters, digits, - and _")]


def check_display_name(name: str) -> list[Violation]:
    return [Violation("display_name", too_long(name))] if len(name) > MAX_NAME_CHARS else []


def check_names(field: str, names: Sequence[str]) -> list[Violation]:
    """Check a list of models or adapters."""
    if len(names) > MAX_NAMES:
        return [Violation(field, f"has {len(names)} names; at most {MAX_NAMES} are allowed")]
    return [
        Violation(f"{field}[{i}]", f"has {len(name)} characters; must have 1 to {MAX_NAME_CHARS}")
        for i, name in enumerate(names)
        if not 1 <= len(name) <= MAX_NAME_CHARS
    ]


def too_long(name: str) -> str:
    return f"has {len(name)} characters; at most {MAX_NAME_CHARS} are allowed"


def refuse(violations: list[Violation]) -> None:
    """Raise InvalidRequestError if there are any."""
    if violations:
        raise InvalidRequestError(violations)


def page_size_of(page_size: int) -> int:
    """Return how many entries a page has. Raises InvalidRequestError."""
    if page_size < 0:
        refuse([Violation("page_size", f"is {page_size}; must be at least 0")])
    return min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)


def num_fitting(entries: Sequence[Message], max_bytes: int) -> int:
    """Return how many of `entries` an answer of so many bytes can hold, from the first on: at least one."""
    ends = itertools.accumulate(entry.ByteSize() + _MAX_FRAME_BYTES for entry in entries)
    return max(1, sum(end <= max_bytes for end in ends))


def page_token(last_id: str) -> str:
    return base64.urlsafe_b64encode(last_id.encode()).decode()


def read_page_token(token: str, is_id: Callable[[str], bool], method: str) -> str:
    """Return what the last page ended with, "" for the first. Raises InvalidRequestError."""
    try:
        last_id = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        last_id = "?"
    if token and not is_id(last_id):
        refuse([Violation("page_token", f"is not a token that {method} has returned")])
    return last_id


def timestamp(seconds: float) -> timestamp_pb2.Timestamp:
    message = timestamp_pb2.Timestamp()
    message.FromMilliseconds(round(seconds * 1000))
    return message


def time_of(message: timestamp_pb2.Timestamp) -> float | None:
    """Return seconds since the epoch, or None for what is no time after it."""
    if not (0 <= message.seconds <= _MAX_SECONDS and 0 <= message.nanos < _NANOS):
        return None
    return message.seconds + message.nanos / _NANOS


def seconds_of(message: duration_pb2.Duration) -> float | None:
    """Return a duration in seconds, or None for what is none."""
    if abs(message.nanos) >= _NANOS or message.seconds * message.nanos < 0:
        return None
    return message.seconds + message.nanos / _NANOS
