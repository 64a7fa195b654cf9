"""Finds a worker for a request: now, or after a while."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from gateway.dispatch.arrivals import Arrivals, WaitObserver
from gateway.dispatch.catalogue import ServedModel
from gateway.dispatch.fleet import Fleet
from gateway.dispatch.generation import Generation
from gateway.dispatch.link import WorkerLink
from gateway.errors import AdapterChangedError, GatewayError, NoWorkerError, OverloadedError
from gateway.routing.router import Choice, Placement, Router
from hicache.keys import PrefixKey

_RETRY_AFTER_S: Final = 1.0  # more or less, where nobody says how long workers are busy
_LONGEST_RETRY_AFTER_S: Final = 60.0


class Why(Enum):
    """What keeps a request from every worker."""

    NO_WORKER = "no_worker"  # that serves its model as it is, takes requests, and has not failed on this one
    TOO_LONG = "too_long"
    ADAPTER = "adapter"  # in this revision
    OVERLOADED = "overloaded"  # they have refused it
    EXPECTED_WAIT = "expected_wait"  # too long at all of them


class NoPlaceError(Exception):
    """No worker can take a request; `error` is what its client would be told of it."""

    def __init__(self, why: Why, error: GatewayError) -> None:
        super().__init__(why.value)
        self.why = why
        self.error = error


@dataclass(slots=True)
class Tried:
    """Where a request was, and what came of it."""

    failed: set[tuple[WorkerLink, int]] = field(default_factory=set)  # and which connection of it
    full: set[str] = field(default_factory=set)

    def untried(self, links: Sequence[WorkerLink]) -> list[WorkerLink]:
        """Return those that have not failed on it: before those that were lost and are back, those it never was at."""
        left = [link for link in links if (link, link.connection) not in self.failed]
        addresses = {link.address for link, _ in self.failed}
        return [link for link in left if link.address not in addresses] or left


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that needs a worker."""

    model: ServedModel
    generation: Generation
    key: PrefixKey  # of all that is known of it by now
    tried: Tried
    begun: bool = False  # its client has something of it already


class Placing:
    """Chooses among the workers of a fleet."""

    def __init__(
        self,
        fleet: Fleet,
        router: Router,
        arrivals: Arrivals,
        observer: WaitObserver,
        max_expected_wait_s: float | None = None,
    ) -> None:
        self._fleet = fleet
        self._router = router
        self._arrivals = arrivals
        self._observer = observer
        self._max_expected_wait_s = max_expected_wait_s

    async def place(self, ask: Ask, wait_s: float) -> tuple[WorkerLink, Choice]:
        """Return who takes the request, which must be sent before anything else happens.

        Waits for a worker where there is none, and no worker is about to change its mind. Raises NoPlaceError.
        """
        try:
            return self.choose(ask)
        except NoPlaceError as error:
            if not self._may_pass(error.why, ask) or wait_s <= 0:
                raise
        began_at, found = time.monotonic(), False
        try:
            while True:
                remaining_s = began_at + wait_s - time.monotonic()
                await self._arrivals.wait(min(remaining_s, self._opens_in_s(ask) or remaining_s))
                try:
                    placed = self.choose(ask)
                except NoPlaceError as error:
                    over = self._arrivals.closed or time.monotonic() >= began_at + wait_s
                    if over or not self._may_pass(error.why, ask):
                        raise
                else:
                    found = True
                    return placed
        finally:
            self._observer.worker_awaited(time.monotonic() - began_at, found)

    def choose(self, ask: Ask) -> tuple[WorkerLink, Choice]:
        """Return who takes the request now. Raises NoPlaceError."""
        links = {link.address: link for link in self._candidates(ask)}
        generation = ask.generation
        placement = Placement(ask.model.name, ask.key, generation.adapter_revision, generation.extra_key)
        candidates = [link.candidate() for link in links.values()]
        choice = self._router.choose(placement, candidates, time.monotonic())
        return links[choice.worker], choice

    def _candidates(self, ask: Ask) -> list[WorkerLink]:
        """Return the workers that could take it, at least one."""
        generation = ask.generation
        there = ask.tried.untried([link for link in self._fleet.links_of(ask.model) if link.takes_requests])
        if not there:
            raise NoPlaceError(Why.NO_WORKER, self._no_worker(ask))
        links = [link for link in there if link.max_sequence_tokens >= generation.max_tokens]
        if not links:
            raise NoPlaceError(Why.TOO_LONG, self._no_worker(ask))
        if generation.adapter:
            links = [link for link in links if _has_adapter(link, generation)]
            if not links:
                raise NoPlaceError(Why.ADAPTER, AdapterChangedError())
        open_to_it = [link for link in links if link.address not in ask.tried.full]
        if not open_to_it:
            full = "every worker's waiting line is full"
            error = OverloadedError(full, reason="WORKER_OVERLOADED", retry_after_s=come_again_in_s(links))
            raise NoPlaceError(Why.OVERLOADED, error)
        return open_to_it if ask.begun else self._soon_enough(open_to_it)

    def _soon_enough(self, links: list[WorkerLink]) -> list[WorkerLink]:
        """Return those where a request would not wait too long; all of them where nobody says what that is."""
        most = self._max_expected_wait_s
        if most is None:
            return links
        left = [link for link in links if (link.expected_wait_s or 0.0) <= most]
        if not left:
            wait_s = min(link.expected_wait_s or 0.0 for link in links)
            error = OverloadedError(
                f"a request would wait for {wait_s:.1f} s; longer than {most:g} s is too long here",
                retry_after_s=min(_LONGEST_RETRY_AFTER_S, max(_RETRY_AFTER_S * _jitter(), wait_s - most)),
            )
            raise NoPlaceError(Why.EXPECTED_WAIT, error)
        return left

    def _may_pass(self, why: Why, ask: Ask) -> bool:
        """Whether it makes sense to wait. A request of which nothing was sent can be prepared for another adapter."""
        return why in {Why.NO_WORKER, Why.TOO_LONG} or (why is Why.ADAPTER and ask.begun)

    def _no_worker(self, ask: Ask) -> NoWorkerError:
        error = self._fleet.no_worker(ask.model.name)
        if (opens_in_s := self._opens_in_s(ask)) is not None:
            error.retry_after_s = min(opens_in_s, error.retry_after_s or opens_in_s)
        return error

    def _opens_in_s(self, ask: Ask) -> float | None:
        """Return the time until a worker gets another chance; None where none waits for one."""
        waits = [link.health.opens_in_s for link in self._fleet.links_of(ask.model)]
        return min((wait for wait in waits if wait > 0), default=None)


def come_again_in_s(links: Sequence[WorkerLink]) -> float:
    """Return after which time one of these workers, which have no room now, may have some."""
    waits = [wait for link in links if (wait := link.expected_wait_s)]
    return min(_LONGEST_RETRY_AFTER_S, min(waits, default=_RETRY_AFTER_S) * _jitter())


def _jitter() -> float:
    """Those who were refused together shall not come back together."""
    return random.uniform(0.5, 1.5)


def _has_adapter(link: WorkerLink, generation: Generation) -> bool:
    return link.adapters.has(generation.tenant, generation.adapter, generation.adapter_revision)
