"""What can go wrong with a request at the gateway, in the gateway's words.

Knows nothing of gRPC: `gateway.rpc.status` translates these once, at the boundary. `reason` is the machine-readable
cause (UPPER_SNAKE_CASE, stable: clients may switch on it); `metadata` holds what else a program may want to know.
No message ever contains prompt text or credentials.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class GatewayError(Exception):
    """Base of everything that a caller is told."""

    reason = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        retry_after_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ):
        """`retry_after_s` is set where it is known when trying again makes sense."""
        super().__init__(message)
        self.message = message
        self.reason = reason or type(self).reason
        self.retry_after_s = retry_after_s
        self.metadata = dict(metadata or {})


class UnauthenticatedError(GatewayError):
    """No credential, or one that does not count. Unknown, wrong and revoked keys look the same to the caller."""

    reason = "CREDENTIAL_REFUSED"


class PermissionDeniedError(GatewayError):
    """The caller is known, and may not."""

    reason = "PERMISSION_DENIED"


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault of a request: the path of the field, and what is wrong with it, the limit included."""

    field: str
    description: str


class InvalidRequestError(GatewayError):
    """The request breaks its contract; `violations` names every fault at once."""

    reason = "INVALID_REQUEST"

    def __init__(self, violations: Sequence[Violation], *, reason: str | None = None):
        super().__init__("; ".join(f"{v.field}: {v.description}" for v in violations), reason=reason)
        self.violations = tuple(violations)


class NotFoundError(GatewayError):
    """A named thing does not exist for this caller."""

    reason = "NOT_FOUND"

    def __init__(self, kind: str, name: str, message: str | None = None):
        # A name is the caller's text: quote it, and not at any length.
        self.kind = kind
        self.name = name if len(name) <= 64 else name[:64] + "…"
        super().__init__(
            message or f"{kind} {self.name!r} does not exist",
            reason=f"{kind.upper().replace(' ', '_')}_NOT_FOUND",
            metadata={"resource": kind},
        )


class AlreadyExistsError(GatewayError):
    reason = "ALREADY_EXISTS"


class FailedPreconditionError(GatewayError):
    """The state of things does not allow it; trying again does not help until somebody changes that."""

    reason = "FAILED_PRECONDITION"


class UnavailableError(GatewayError):
    """Cannot be served now; the same request may well succeed later."""

    reason = "UNAVAILABLE"


class NoWorkerError(UnavailableError):
    """No worker is there that could take the request; one may come."""

    reason = "NO_WORKER"


class StreamLostError(UnavailableError):
    """A stream whose client has tokens already cannot go on: not on its worker, and on no other one."""

    reason = "STREAM_LOST"

    def __init__(self, *, cause: str, why: str, worker: str, sent_tokens: int, moves: int) -> None:
        """`cause` is what became of its `worker`, `why` a word for what keeps it from going on elsewhere."""
        super().__init__(
            f"the worker failed ({cause}) and no other one can go on ({why}); tokens sent so far stand, no more will"
            " follow",
            metadata={
                "cause": cause,
                "why": why,
                "worker": worker,
                "sentTokens": str(sent_tokens),
                "moves": str(moves),
            },
        )


class AdapterChangedError(UnavailableError):
    """The adapter was replaced or unloaded after the request had been given to a worker."""

    reason = "ADAPTER_CHANGED"

    def __init__(self) -> None:
        super().__init__(
            "the adapter was replaced or unloaded meanwhile; tokens sent so far stand, no more will follow",
            retry_after_s=0.1,
        )


class OverloadedError(GatewayError):
    """A bound on waiting work was reached."""

    reason = "OVERLOADED"


class QuotaExceededError(GatewayError):
    """A limit of the tenant was reached. `retry_after_s` None: the request is more than the limit ever allows."""

    reason = "QUOTA_EXCEEDED"

    def __init__(self, message: str, *, limit: str, value: int, retry_after_s: float | None) -> None:
        """`limit` is the name of the policy's field, such as "requests_per_minute"; `value` is what it is set to."""
        super().__init__(message, retry_after_s=retry_after_s, metadata={"limit": limit, "value": str(value)})
        self.limit = limit


class DeadlineExceededError(GatewayError):
    reason = "DEADLINE_EXCEEDED"


class CancelledRequestError(GatewayError):
    reason = "CANCELLED"


class InternalError(GatewayError):
    """A fault on our side. The message says nothing that only operators should know."""

    reason = "INTERNAL"
