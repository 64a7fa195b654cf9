"""The quotas of one gateway, without the gateway, over a store whose calls fail as a test wants it."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

from redis.asyncio import Redis

from gateway.config import QuotaConfig
from gateway.identity.callers import Caller
from gateway.identity.reach import StoreReach, unavailable
from gateway.identity.stores import Tenant
from gateway.observer import NullObserver
from gateway.policy import Terms
from gateway.quota.accounts import Account, Demand
from gateway.quota.costs import TokenCosts
from gateway.quota.deciding import Alone, Decider, OwnPart, holdings_of
from gateway.quota.journal import Journal
from gateway.quota.ledger import Changes
from gateway.quota.lines import Lines
from gateway.quota.local import LocalLimits
from gateway.quota.opening import Observer
from gateway.quota.quotas import TenantQuotas
from gateway.quota.scripts import SERVER_CLOCK
from gateway.quota.shared import Applied, Holdings, Renewed, SharedLimits
from tests.fakes.terms import TermsOfATest

LIMITS = Terms(
    requests_per_minute=10_000, tokens_per_minute=1_000_000, max_concurrent_requests=1_000, max_queued_requests=10
)


def caller(terms: Terms = LIMITS, tenant: str = "acme") -> Caller:
    return Caller(Tenant(tenant, "", 1000.0, 1), terms, "key 1", 0.0)


class FaultyStore:
    """A store whose calls fail as a test wants it: before they are made, or after, when only the answer is lost."""

    def __init__(self, inner: SharedLimits) -> None:
        self._inner = inner
        self.chance = random.Random(0)
        self.fails_before = 0.0
        self.fails_after = 0.0
        self.away = False
        self.failures = 0

    async def apply(self, number: int, changes: Changes, *, whatever_was_before: bool) -> Applied:
        self._fail(self.fails_before)
        applied = await self._inner.apply(number, changes, whatever_was_before=whatever_was_before)
        self._fail(self.fails_after)
        return applied

    async def renew(self, holdings: Sequence[Holdings]) -> Renewed:
        self._fail(0)
        return await self._inner.renew(holdings)

    async def sign_off(self) -> None:
        self._fail(0)
        await self._inner.sign_off()

    async def admit(self, ask: Any, *, waits: bool) -> Any:
        self._fail(self.fails_before)
        decision = await self._inner.admit(ask, waits=waits)
        self._fail(self.fails_after)
        return decision

    def _fail(self, share: float) -> None:
        if self.away or self.chance.random() < share:
            self.failures += 1
            raise unavailable()


class Gateway:
    """The quotas of one gateway."""

    def __init__(
        self,
        client: Redis,
        name: str,
        lease_s: float = 15.0,
        alone: Alone | None = None,
        clock: str = SERVER_CLOCK,
        observer: Observer | None = None,
    ) -> None:
        observer = observer or NullObserver()
        self.local = LocalLimits()
        reach = StoreReach(client, 2.0, NullObserver())
        self.store = FaultyStore(SharedLimits(client, reach, name, lease_s, 400, clock))
        lines = Lines(5.0)
        self.journal = Journal(self.store, lambda: holdings_of(self.local), lease_s, NullObserver(), lines.wake)
        alone = alone or OwnPart(self.local, lambda: self.journal.gateways)
        decider = Decider(self.store, self.local, self.journal, alone)
        costs = TokenCosts.of(QuotaConfig())
        self.terms = TermsOfATest()
        self.quotas = TenantQuotas(decider, self.journal, lines, self.local, costs, name, observer, self.terms)
        self.requests = self.tokens = 0

    async def serve(self, who: Caller, new_tokens: int = 5) -> None:
        """One request with a prompt of 10 tokens."""
        account = Account("model", "")
        async with self.quotas.admit(who, Demand("Generate", 10 + 2 * new_tokens), account):
            await asyncio.sleep(0)
            account.admitted, account.prompt_tokens, account.completion_tokens = True, 10, new_tokens
        self.requests += 1
        self.tokens += 10 + new_tokens


@contextlib.asynccontextmanager
async def running(gateway: Gateway) -> AsyncIterator[Gateway]:
    gateway.quotas.start()
    try:
        yield gateway
    finally:
        await gateway.quotas.stop()
