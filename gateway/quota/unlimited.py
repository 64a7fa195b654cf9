"""No limits, and no account of what is used: for gateways without a store of quotas."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.identity.callers import Caller
from gateway.quota.accounts import Account, Demand


class Unlimited:
    """Implements Quotas."""

    @asynccontextmanager
    async def admit(self, caller: Caller, demand: Demand, account: Account) -> AsyncIterator[None]:
        yield

    def precheck(self, caller: Caller) -> None:
        pass
