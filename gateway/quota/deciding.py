"""Who decides about a call: Redis for all gateways, or this one alone while Redis is away."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gateway.errors import UnavailableError
from gateway.quota.admissions import Charge
from gateway.quota.bounds import Admitted, Ask, Bounds, Decision, Queued, Refused
from gateway.quota.journal import Journal
from gateway.quota.local import LocalLimits
from gateway.quota.shared import Holdings

# What a call is told that is too large for this gateway's part of a limit, and not for the limit. Nobody knows when
# Redis will be back.
_AWAY_RETRY_S = 5.0


class LimitStore(Protocol):
    async def admit(self, ask: Ask, *, waits: bool) -> Decision:
        """Raises UnavailableError."""
        ...


class Alone(Protocol):
    """What a gateway does while Redis cannot be asked."""

    name: str  # for metrics

    def admit(self, ask: Ask, now: float, *, waits: bool) -> Decision:
        """Raises UnavailableError."""
        ...


class OwnPart:
    """Admits this gateway's part of each limit, by what it has admitted itself, whoever decided it."""

    name = "local"

    def __init__(self, local: LocalLimits, gateways: Callable[[], int]) -> None:
        self._local = local
        self._gateways = gateways

    def admit(self, ask: Ask, now: float, *, waits: bool) -> Decision:
        part = replace(ask, bounds=ask.bounds.part(self._gateways()))
        decision = self._local.admit(part, now, waits=waits)
        if isinstance(decision, Refused):
            value = getattr(ask.bounds, decision.limit)
            retry_after_s = decision.retry_after_s
            return Refused(decision.limit, value, _AWAY_RETRY_S if retry_after_s is None else retry_after_s)
        return decision


class EverythingGoes:
    """Admits whatever comes."""

    name = "allow"

    def __init__(self, local: LocalLimits) -> None:
        self._local = local

    def admit(self, ask: Ask, now: float, *, waits: bool) -> Decision:
        self._local.record(ask, now)
        return Admitted(None)


class NothingGoes:
    """Admits nothing that has a limit."""

    name = "refuse"

    def admit(self, ask: Ask, now: float, *, waits: bool) -> Decision:
        raise UnavailableError(
            "the store of quotas cannot be reached", reason="QUOTA_STORE_UNAVAILABLE", retry_after_s=1.0
        )


@dataclass(frozen=True, slots=True)
class Permit:
    """A call that may go on, and what it has taken."""

    ask: Ask
    admitted_at: float  # `time.monotonic`
    second: int | None  # of the store's clock, in which the windows are charged; None: they cannot be given back


class Decider:
    """Belongs to the event loop. Invariant: what it has admitted is in Redis or in the journal."""

    def __init__(self, store: LimitStore, local: LocalLimits, journal: Journal, alone: Alone) -> None:
        self._store = store
        self._local = local
        self._journal = journal
        self._alone = alone
        self._abandoned: set[asyncio.Future[Decision]] = set()

    @property
    def name(self) -> str:
        """Who decides now: "shared", or what happens without Redis."""
        return "shared" if self._journal.current else self._alone.name

    async def decide(self, ask: Ask, *, waits: bool) -> Permit | Queued | Refused:
        """Raises UnavailableError where nothing is admitted without Redis.

        `waits`: the call was told to wait before. Whoever is told so must ask again, or `leave`.
        """
        await self._journal.settled_state()
        if self._journal.current:
            try:
                return await self._by_store(ask, waits=waits)
            except UnavailableError:
                self._journal.lost()
                # It may have been admitted all the same, or told to wait.
                self._journal.ledger.free(ask.tenant, ask.lease)
                self._journal.ledger.leave(ask.tenant, ask.lease)
        return self._by_this_gateway(ask, waits=waits)

    def leave(self, ask: Ask) -> None:
        """A call waits no longer."""
        self._local.leave(ask)
        self._journal.ledger.leave(ask.tenant, ask.lease)
        self._journal.write_soon()

    def release(self, permit: Permit, unused_tokens: int) -> None:
        """A call has ended. Its part of the ledger is written by whoever settles it next."""
        ask = permit.ask
        ledger = self._journal.ledger
        if ask.bounds.tokens_per_minute is not None and permit.second is not None:
            ledger.charge(ask.tenant, permit.second, 0, -unused_tokens)
        if ask.bounds.max_concurrent_requests is not None:
            ledger.free(ask.tenant, ask.lease)
        self._local.release(ask, permit.admitted_at, unused_tokens)

    async def _by_store(self, ask: Ask, *, waits: bool) -> Permit | Queued | Refused:
        # In a task of its own: whoever asks may be cancelled, and then what it was given must be given back.
        call = asyncio.ensure_future(self._store.admit(ask, waits=waits))
        asked_at = time.monotonic()
        try:
            decision = await asyncio.shield(call)
        except asyncio.CancelledError:
            self._abandoned.add(call)
            call.add_done_callback(lambda done: self._undo(ask, asked_at, done))
            raise
        return self._taken(ask, asked_at, decision)

    def _taken(self, ask: Ask, asked_at: float, decision: Decision) -> Permit | Queued | Refused:
        if isinstance(decision, Queued):
            self._local.queue(ask, asked_at)
            return decision
        if isinstance(decision, Refused):
            self._local.leave(ask)
            return decision
        self._local.record(ask, asked_at)
        if decision.second is not None:
            self._journal.admitted(decision.number, _charge(ask, decision.second))
        return Permit(ask, asked_at, decision.second)

    def _by_this_gateway(self, ask: Ask, *, waits: bool) -> Permit | Queued | Refused:
        now, ledger = time.monotonic(), self._journal.ledger
        decision = self._alone.admit(ask, now, waits=waits)
        if not isinstance(decision, Admitted):
            return decision
        charge = _charge(ask, self._journal.clock.second(now))
        ledger.charge(charge.tenant, charge.second, charge.requests, charge.tokens)
        if ask.bounds.max_concurrent_requests is not None:
            ledger.hold(ask.tenant, ask.lease)
        if waits:
            ledger.leave(ask.tenant, ask.lease)
        self._journal.write_soon()
        return Permit(ask, now, charge.second)

    def _undo(self, ask: Ask, asked_at: float, call: "asyncio.Future[Decision]") -> None:
        """Give back what came of a call that nobody waits for any more."""
        self._abandoned.discard(call)
        if call.cancelled() or call.exception() is not None:
            self._journal.ledger.free(ask.tenant, ask.lease)
            self.leave(ask)
            return
        taken = self._taken(ask, asked_at, call.result())
        if isinstance(taken, Permit):
            self.release(taken, ask.tokens)
            self._journal.write_soon()
        elif isinstance(taken, Queued):
            self.leave(ask)


def _charge(ask: Ask, second: int) -> Charge:
    bounds: Bounds = ask.bounds
    return Charge(
        ask.tenant,
        second,
        0 if bounds.requests_per_minute is None else 1,
        0 if bounds.tokens_per_minute is None else ask.tokens,
    )


def holdings_of(local: LocalLimits) -> Sequence[Holdings]:
    """Return what this gateway holds of all tenants' places and lines."""
    return [Holdings(tenant, tuple(running), tuple(waiting)) for tenant, running, waiting in local.held_by_tenant()]
