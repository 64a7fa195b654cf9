"""What can go wrong with a request inside a worker, in the engine's words.

Knows nothing of gRPC: `worker.rpc` translates these once, at the boundary.
"""

from dataclasses import dataclass
from enum import Enum


class FailureCode(Enum):
    """Why a sequence ended without finishing."""

    INVALID_ARGUMENT = "invalid_argument"
    NOT_FOUND = "not_found"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    OVERLOADED = "overloaded"
    SHUTTING_DOWN = "shutting_down"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a sequence that did not finish; `field` is the request field at fault, if one is."""

    code: FailureCode
    message: str
    field: str = ""


class WorkerStartError(Exception):
    """A worker cannot start with what it was given; the message says what a person can do about it."""


class UnsupportedModelError(WorkerStartError):
    """The model cannot be served here; the message names the feature that stands in the way."""


class PoolTooSmallError(WorkerStartError):
    """The memory set aside for KV does not hold a single page."""
