"""What is asked of the limits for one call, and what they answer. Values; nothing here decides."""

from dataclasses import dataclass
from typing import Self

from gateway.policy import Terms


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits that hold for a call. None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent_requests: int | None = None
    max_queued_requests: int = 0

    @classmethod
    def of(cls, terms: Terms) -> Self:
        return cls(
            terms.requests_per_minute,
            terms.tokens_per_minute,
            terms.max_concurrent_requests,
            terms.max_queued_requests,
        )

    @property
    def unlimited(self) -> bool:
        """Whether nothing has to be asked."""
        return self.requests_per_minute is self.tokens_per_minute is self.max_concurrent_requests is None

    def part(self, gateways: int) -> "Bounds":
        """Return what one of so many gateways may give away on its own: together no more than the whole.

        Where there are more gateways than requests allowed, each may still have one: none at all serves nobody.
        """

        def share(limit: int | None, least: int) -> int | None:
            return None if limit is None else max(least, limit // gateways)

        return Bounds(
            share(self.requests_per_minute, 1),
            share(self.tokens_per_minute, 1),
            share(self.max_concurrent_requests, 1),
            self.max_queued_requests // gateways,
        )


@dataclass(frozen=True, slots=True)
class Ask:
    """One call before the limits."""

    tenant: str
    lease: str  # names this call among all that there will ever be
    tokens: int
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Admitted:
    """The call may go on; its windows are charged and its place is taken."""

    second: int | None  # of the store's clock, in which the windows were charged; None: not known, or by nobody
    number: int = 0  # counts what the store admitted for this gateway


@dataclass(frozen=True, slots=True)
class Queued:
    """The call has to wait for a place; its windows are not charged."""

    ahead: int  # that came before it and wait


@dataclass(frozen=True, slots=True)
class Refused:
    limit: str  # the policy's field
    value: int
    # Seconds until the same call will be admitted if nothing else happens. None: never, or nobody knows.
    retry_after_s: float | None


Decision = Admitted | Queued | Refused

REQUESTS, TOKENS = "requests_per_minute", "tokens_per_minute"
PLACES, LINE = "max_concurrent_requests", "max_queued_requests"


def no_place(bounds: Bounds) -> Refused:
    """Return what a call is told for which there is neither a place nor room in the line."""
    if bounds.max_queued_requests:
        return Refused(LINE, bounds.max_queued_requests, None)
    return Refused(PLACES, bounds.max_concurrent_requests or 0, None)
