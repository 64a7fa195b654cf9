"""The limits of tenants, and the account of what they use: the port that the pipeline calls."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from gateway.errors import QuotaExceededError, UnavailableError
from gateway.identity.callers import Caller
from gateway.policy import Terms
from gateway.quota.accounts import Account, Demand
from gateway.quota.bounds import LINE, PLACES, REQUESTS, TOKENS, Ask, Bounds, Queued, Refused
from gateway.quota.costs import TokenCosts
from gateway.quota.deciding import Decider, Permit
from gateway.quota.journal import Journal
from gateway.quota.ledger import Counts, Use
from gateway.quota.lines import Lines
from gateway.quota.local import LocalLimits
from gateway.quota.memory import Paces, Refusals

_SWEEP_S = 10.0
_LAST_WRITES_S = 5.0


class QuotaObserver(Protocol):
    def quota_decided(self, tenant: str, outcome: str, limit: str, by: str) -> None:
        """A call was "admitted", "refused" or "queued", the last two by a limit ("": by none, because Redis is away).
        `by` is who decided: "shared" for Redis, "local", "allow" or "refuse" for what happens without it, "memory" for
        a refusal that still held.
        """
        ...

    def quota_waiting(self, calls: int) -> None:
        """So many calls of this gateway wait for one of their tenant's to end."""
        ...

    def quota_waited(self, seconds: float) -> None:
        """A call has waited so long, whatever came of it."""
        ...


class CurrentTerms(Protocol):
    def of(self, caller: Caller) -> Terms:
        """Return what holds for the caller's tenant now. Asks nobody."""
        ...


class TenantQuotas:
    """Implements Quotas. Belongs to the event loop; `start` before use, `stop` after the last call has ended."""

    def __init__(
        self,
        decider: Decider,
        journal: Journal,
        lines: Lines,
        local: LocalLimits,
        costs: TokenCosts,
        incarnation: str,
        observer: QuotaObserver,
        terms_now: CurrentTerms,
    ) -> None:
        self._decider = decider
        self._journal = journal
        self._lines = lines
        self._local = local
        self._costs = costs
        self._observer = observer
        self._terms_now = terms_now
        self._refusals = Refusals()
        self._paces = Paces()
        self._new_lease: Callable[[], str] = (f"{incarnation}:{number}" for number in itertools.count()).__next__
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._journal.run(), name="quota journal"),
            asyncio.create_task(self._sweep(), name="quota sweep"),
        ]

    async def stop(self, timeout_s: float = _LAST_WRITES_S) -> None:
        """Write what has been settled, for no longer than `timeout_s`."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._journal.close(timeout_s)

    # --------------------------------------------------------------------------------------------------------- the port

    def precheck(self, caller: Caller) -> None:
        """Raise QuotaExceededError for a call that is known to be over a limit, before any work is spent on it."""
        limit = caller.terms.requests_per_minute
        if limit is None:
            return
        opens_in_s = self._refusals.opens_in(_tenant(caller), limit, time.monotonic())
        if opens_in_s > 0:
            self._observer.quota_decided(caller.tenant_id, "refused", REQUESTS, "memory")
            raise _exceeded(Refused(REQUESTS, limit, opens_in_s), 1)

    @asynccontextmanager
    async def admit(self, caller: Caller, demand: Demand, account: Account) -> AsyncIterator[None]:
        """Reserve what a call needs for as long as the context lasts, and settle then by what `account` says.

        Entering may wait, where the tenant's queue has room. Raises QuotaExceededError. Whatever way the context is
        left, what it reserved is settled exactly once.
        """
        bounds = Bounds.of(caller.terms)
        day = datetime.now(UTC).strftime("%Y%m%d")
        account.day = day
        permit = await self._enter(caller, Ask(caller.tenant_id, self._new_lease(), self._asked(demand), bounds))
        try:
            yield
        finally:
            self._settle(caller, permit, account, day)

    def _asked(self, demand: Demand) -> int:
        return demand.tokens + self._costs.of_counting(demand.counted_tokens)

    # ---------------------------------------------------------------------------------------------------- coming, going

    async def _enter(self, caller: Caller, ask: Ask) -> Permit:
        if ask.bounds.unlimited:
            return Permit(ask, time.monotonic(), None)
        limit = ask.bounds.tokens_per_minute
        if limit is not None and ask.tokens > limit:
            raise self._refused(caller, ask, Refused(TOKENS, limit, None), "shared")
        try:
            decision = await self._decider.decide(ask, waits=False)
            if isinstance(decision, Queued):
                decision = await self._wait(caller, ask)
        except UnavailableError:
            self._observer.quota_decided(ask.tenant, "refused", "", self._decider.name)
            raise
        if isinstance(decision, Refused):
            raise self._refused(caller, ask, decision, self._decider.name)
        self._observer.quota_decided(ask.tenant, "admitted", "", self._decider.name)
        return decision

    async def _wait(self, caller: Caller, ask: Ask) -> Permit | Refused:
        async def decide() -> Permit | Queued | Refused:
            bounds = Bounds.of(self._terms_now.of(caller))  # they may have changed meanwhile
            return await self._decider.decide(replace(ask, bounds=bounds), waits=True)

        self._observer.quota_decided(ask.tenant, "queued", PLACES, self._decider.name)
        began, admitted = time.monotonic(), False
        try:
            decision = await self._lines.wait(ask, decide, self._observer.quota_waiting)
            admitted = isinstance(decision, Permit)
            return decision
        finally:
            if not admitted:
                self._decider.leave(ask)
            self._observer.quota_waited(time.monotonic() - began)

    def _settle(self, caller: Caller, permit: Permit, account: Account, day: str) -> None:
        ask = permit.ask
        use = None
        if account.admitted:
            made_ms = round(caller.tenant.created_at * 1000)
            use = Use(ask.tenant, made_ms, day, account.model, account.adapter)
        if use is None and ask.bounds.unlimited:
            return
        if not ask.bounds.unlimited:
            now = time.monotonic()
            self._paces.ended(ask.tenant, now - permit.admitted_at)
            # Never more than was reserved: that is what was admitted.
            self._decider.release(permit, ask.tokens - min(ask.tokens, self._costs.of_use(account)))
        self._journal.ledger.settle(use, Counts.of(account))
        self._journal.write_soon()
        if not self._journal.current:
            self._lines.wake(ask.tenant)

    def _refused(self, caller: Caller, ask: Ask, refusal: Refused, by: str) -> QuotaExceededError:
        self._observer.quota_decided(ask.tenant, "refused", refusal.limit, by)
        if refusal.limit == REQUESTS and refusal.retry_after_s is not None:
            self._refusals.remember(_tenant(caller), refusal.value, time.monotonic(), refusal.retry_after_s)
        if refusal.limit in {PLACES, LINE}:
            # An estimate: nobody knows when a request will end.
            retry_after_s = self._paces.until_place(ask.tenant, ask.bounds)
            refusal = Refused(refusal.limit, refusal.value, retry_after_s)
        return _exceeded(refusal, ask.tokens)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = time.monotonic()
            self._local.forget_idle(now)
            self._refusals.forget(now)


def _tenant(caller: Caller) -> tuple[str, float]:
    return caller.tenant_id, caller.tenant.created_at


def _exceeded(refusal: Refused, tokens: int) -> QuotaExceededError:
    limit, value = refusal.limit, refusal.value
    told = {
        REQUESTS: f"{limit} is {value}, and as many were admitted in the last minute",
        TOKENS: f"{limit} is {value}, and {tokens} more do not fit into this minute",
        PLACES: f"{limit} is {value}, and as many run",
        LINE: f"{limit} is {value}, and as many wait",
    }[limit]
    if refusal.retry_after_s is None:
        told = f"{limit} is {value}, and this request may use {tokens}: it never fits"
    return QuotaExceededError(told, limit=limit, value=value, retry_after_s=refusal.retry_after_s)
