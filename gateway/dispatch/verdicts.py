"""How a sequence ends at a worker without having finished, and what that means for its request."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from gateway.errors import (
    AdapterChangedError,
    CancelledRequestError,
    DeadlineExceededError,
    GatewayError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
    Violation,
)
from radixgate.v1 import worker_pb2

_CONTINUED = "continued"  # the field of a submit, with which others of it begin


class Fault(Enum):
    """What happens to a worker, and not because of what the request asks for: another one may do better."""

    LOST = "lost"  # the connection
    SILENT = "silent"
    STALLED = "stalled"
    FAILED = "failed"
    SHUTTING_DOWN = "shutting_down"
    OVERLOADED = "overloaded"

    @property
    def is_loss(self) -> bool:
        """Whether the worker is gone, or as good as gone."""
        return self in {Fault.LOST, Fault.SILENT, Fault.STALLED}

    @property
    def may_pass(self) -> bool:
        """Whether it makes sense to wait for another worker where there is none."""
        return self.is_loss or self is Fault.SHUTTING_DOWN


@dataclass(frozen=True, slots=True)
class Verdict:
    """`fault` None: the request ends with this, wherever it goes."""

    error: GatewayError
    fault: Fault | None = None
    refuses_what_was_begun: bool = False  # the state that the request has by now, and not what it asks for


def lost(worker: str, fault: Fault) -> Verdict:
    """Return what it means that nothing more comes from a worker."""
    error = UnavailableError(
        f"the {_WHAT_HAPPENED[fault]}; tokens sent so far stand, no more will follow",
        reason="WORKER_LOST",
        metadata={"worker": worker, "cause": fault.value},
    )
    return Verdict(error, fault)


_WHAT_HAPPENED = {
    Fault.LOST: "connection to the worker was lost",
    Fault.SILENT: "worker has fallen silent",
    Fault.STALLED: "worker has stalled",
}


def verdict_on(error: worker_pb2.SequenceError) -> Verdict:
    """Translate what a worker says."""
    if error.code == worker_pb2.SEQUENCE_ERROR_CODE_INVALID_ARGUMENT:
        refused = InvalidRequestError([Violation(error.field, error.message)])
        return Verdict(refused, refuses_what_was_begun=error.field.startswith(_CONTINUED))
    if error.code == worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND and error.field == "adapter":
        return Verdict(AdapterChangedError())  # it was there when the request was sent
    make = _FINAL.get(error.code)
    if make is not None:
        return Verdict(make(error))
    if error.code == worker_pb2.SEQUENCE_ERROR_CODE_OVERLOADED:
        return Verdict(OverloadedError(error.message, reason="WORKER_OVERLOADED"), Fault.OVERLOADED)
    if error.code == worker_pb2.SEQUENCE_ERROR_CODE_SHUTTING_DOWN:
        return Verdict(UnavailableError(error.message, reason="WORKER_SHUTTING_DOWN"), Fault.SHUTTING_DOWN)
    return Verdict(failed(), Fault.FAILED)


def failed() -> InternalError:
    return InternalError("the worker failed on this request", reason="WORKER_FAILED")


_FINAL: dict[int, Callable[[worker_pb2.SequenceError], GatewayError]] = {
    worker_pb2.SEQUENCE_ERROR_CODE_NOT_FOUND: lambda error: NotFoundError("model", "", error.message),
    worker_pb2.SEQUENCE_ERROR_CODE_DEADLINE_EXCEEDED: lambda error: DeadlineExceededError(error.message),
    worker_pb2.SEQUENCE_ERROR_CODE_CANCELLED: lambda error: CancelledRequestError(error.message),
}
