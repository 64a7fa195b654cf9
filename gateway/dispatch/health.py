"""Whether one worker is to get requests: it drains, it has stalled, it fails too often."""

import time
from collections.abc import Callable
from typing import Protocol

from gateway.config import WorkerLinkConfig
from gateway.dispatch.pulse import Pulse, Sign
from gateway.routing.breaker import Breaker, BreakerState
from radixgate.v1 import worker_pb2


class HealthObserver(Protocol):
    def breaker_changed(self, worker: str, state: str) -> None: ...

    def worker_stalled(self, worker: str) -> None: ...


class WorkerHealth:
    """Belongs to the link to the worker. The breaker outlives connections; everything else begins with each."""

    def __init__(
        self,
        worker: str,
        config: WorkerLinkConfig,
        observer: HealthObserver,
        on_opening: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_opening` is called whenever the worker may take requests that it did not take before."""
        self._worker = worker
        self._config = config
        self._observer = observer
        self._on_opening = on_opening
        self._clock = clock
        self._breaker = Breaker(config.breaker_failures, config.breaker_open_s)
        self._breaker_told = BreakerState.CLOSED
        self._pulse = Pulse(config.silence_s, config.stall_s)

    @property
    def takes_requests(self) -> bool:
        return not self._pulse.closed and self._breaker.allows(self._clock())

    @property
    def opens_in_s(self) -> float:
        """How long the breaker keeps requests away for sure."""
        return self._breaker.opens_in_s(self._clock())

    def connected(self) -> None:
        """A connection begins."""
        self._pulse = Pulse(self._config.silence_s, self._config.stall_s)
        self._on_opening()

    def heard(self, message: worker_pb2.ConnectResponse) -> Sign:
        """The worker has said something. Return STALLED when it says, for the first time, that nothing moves."""
        was_closed, was_stalled = self._pulse.closed, self._pulse.stalled
        self._pulse.heard(message)
        if self._pulse.stalled and not was_stalled:
            self._observer.worker_stalled(self._worker)
            return Sign.STALLED
        if message.HasField("adapters") or (was_closed and not self._pulse.closed):
            self._on_opening()
        return Sign.ALIVE

    def passed(self, seconds: float, begun: int) -> Sign:
        """See `Pulse.passed`; a worker that says itself that it has stalled has said so in `heard`."""
        self._tell_breaker()
        stalled_before = self._pulse.stalled
        sign = self._pulse.passed(seconds, begun)
        if sign is Sign.STALLED and stalled_before:
            return Sign.ALIVE
        if sign is Sign.STALLED:
            self._observer.worker_stalled(self._worker)
        return sign

    # --------------------------------------------------------------------------------------- outcomes of requests

    def sent(self) -> int:
        """A request goes to the worker. Return under what its outcome is to be told."""
        permit = self._breaker.sent(self._clock())
        self._tell_breaker()
        return permit

    def answered(self, permit: int) -> None:
        self._breaker.answered(permit)
        self._tell_breaker()

    def finished(self, permit: int) -> None:
        self._breaker.finished(permit)
        self._tell_breaker()

    def abandoned(self, permit: int) -> None:
        """A request has ended without saying anything about the worker."""
        allowed_before = self._breaker.allows(self._clock())
        self._breaker.abandoned(permit)
        if not allowed_before and self._breaker.allows(self._clock()):
            self._on_opening()  # it was the one that was to see: another one may

    def failed(self, permit: int) -> None:
        self._breaker.failed(permit, self._clock())
        self._tell_breaker()

    def _tell_breaker(self) -> None:
        state = self._breaker.state(self._clock())
        if state is not self._breaker_told:
            self._breaker_told = state
            self._observer.breaker_changed(self._worker, state.value)
            if state is not BreakerState.OPEN:
                self._on_opening()
