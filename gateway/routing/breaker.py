"""Whether a worker that fails again and again gets further requests. Knows no connection; time is passed in.

    closed      all requests may go there
      └─ `failures` faults of the worker in a row, no request that ended well between them
    open        none, for `open_s`
      └─ the time is over
    half open   one, to see
      ├─ it is answered: closed, on probation: one fault more, before any request ends well, opens it again
      └─ it fails: open

What clients do wrong is told to nobody here, and neither is overload: `abandoned` says that nothing was learnt.
"""

from enum import Enum


class BreakerState(Enum):
    CLOSED = "closed"
    HALF_OPEN = "half_open"
    OPEN = "open"


class Breaker:
    """Of one worker. What is told of a request that was sent before the breaker opened counts no more.

    Invariant: while it is open nothing may be sent; while it is half open at most one request is under way.
    """

    def __init__(self, failures: int, open_s: float) -> None:
        self._limit = failures
        self._open_s = open_s
        self._failures = 0
        self._opened_at: float | None = None  # None: closed
        self._probing = False
        self._generation = 0  # how often it has opened

    def state(self, now: float) -> BreakerState:
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if now >= self._opened_at + self._open_s else BreakerState.OPEN

    def allows(self, now: float) -> bool:
        """Whether a request may be sent now."""
        state = self.state(now)
        return state is BreakerState.CLOSED or (state is BreakerState.HALF_OPEN and not self._probing)

    def opens_in_s(self, now: float) -> float:
        """Return how long nothing may be sent for sure; 0 where something may, or may at any moment."""
        return 0.0 if self._opened_at is None else max(0.0, self._opened_at + self._open_s - now)

    def sent(self, now: float) -> int:
        """A request is sent, which `allows` had allowed. Return under what its outcome is to be told."""
        if self.state(now) is BreakerState.HALF_OPEN:
            self._probing = True
        return self._generation

    def answered(self, permit: int) -> None:
        """The worker has begun to answer."""
        if permit == self._generation and self._opened_at is not None:
            self._opened_at, self._probing = None, False
            self._failures = self._limit - 1

    def finished(self, permit: int) -> None:
        """A request has ended well."""
        self.answered(permit)
        if permit == self._generation:
            self._failures = 0

    def abandoned(self, permit: int) -> None:
        """A request has ended in a way that says nothing about the worker."""
        if permit == self._generation:
            self._probing = False

    def failed(self, permit: int, now: float) -> None:
        """The worker has failed on a request."""
        if permit != self._generation:
            return
        self._failures += 1
        if self._opened_at is not None or self._failures >= self._limit:
            self._opened_at, self._probing = now, False
            self._generation += 1
