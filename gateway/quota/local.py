"""Limits as one gateway keeps them alone: its own calls, in memory. Mirrors what the scripts do in Redis.

Counts what this gateway has admitted always, also while Redis decides: when Redis goes, nothing begins anew.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gateway.quota.bounds import REQUESTS, TOKENS, Admitted, Ask, Decision, Queued, Refused, no_place
from gateway.quota.windows import NEVER, WINDOW_S, Window


@dataclass(slots=True)
class _Tenant:
    requests: Window = field(default_factory=Window)
    tokens: Window = field(default_factory=Window)
    running: set[str] = field(default_factory=set)
    line: "OrderedDict[str, None]" = field(default_factory=OrderedDict)
    touched_at: float = 0.0


class LocalLimits:
    """Belongs to the event loop. Invariant: a lease runs, or waits, or is not known."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}

    def admit(self, ask: Ask, now: float, *, waits: bool) -> Decision:
        """Charge the windows and take a place, or neither. `waits`: the call was told to wait before."""
        tenant = self._of(ask.tenant, now)
        closed = self._closed(tenant, ask, now)
        if closed is not None:
            tenant.line.pop(ask.lease, None)
            return closed
        places = ask.bounds.max_concurrent_requests
        if places is not None and ask.lease not in tenant.running:
            ahead = _place_in(tenant.line, ask.lease)
            if ahead >= places - len(tenant.running):
                if ask.lease not in tenant.line and not waits and len(tenant.line) >= ask.bounds.max_queued_requests:
                    return no_place(ask.bounds)
                tenant.line[ask.lease] = None
                return Queued(ahead)
        self.record(ask, now)
        return Admitted(None)

    def record(self, ask: Ask, now: float) -> None:
        """Count a call that was admitted, by whomever."""
        tenant = self._of(ask.tenant, now)
        tenant.line.pop(ask.lease, None)
        if ask.bounds.requests_per_minute is not None:
            tenant.requests.charge(now, 1)
        if ask.bounds.tokens_per_minute is not None:
            tenant.tokens.charge(now, ask.tokens)
        if ask.bounds.max_concurrent_requests is not None:
            tenant.running.add(ask.lease)

    def queue(self, ask: Ask, now: float) -> None:
        """Count a call that was told to wait, by whomever."""
        self._of(ask.tenant, now).line.setdefault(ask.lease, None)

    def leave(self, ask: Ask) -> None:
        """A call waits no longer."""
        if tenant := self._tenants.get(ask.tenant):
            tenant.line.pop(ask.lease, None)

    def release(self, ask: Ask, admitted_at: float, unused_tokens: int) -> None:
        """A call that was admitted then has ended."""
        if tenant := self._tenants.get(ask.tenant):
            tenant.running.discard(ask.lease)
            tenant.tokens.give_back(admitted_at, unused_tokens)

    def held_by_tenant(self) -> Iterable[tuple[str, Sequence[str], Sequence[str]]]:
        """Return tenants with the leases that run now, and those that wait."""
        for name, tenant in self._tenants.items():
            if tenant.running or tenant.line:
                yield name, sorted(tenant.running), list(tenant.line)

    def forget_idle(self, now: float) -> None:
        """Drop tenants of whom nothing counts any more."""
        for name, tenant in list(self._tenants.items()):
            if not tenant.running and not tenant.line and tenant.touched_at < now - WINDOW_S - 1:
                del self._tenants[name]

    def _of(self, name: str, now: float) -> _Tenant:
        tenant = self._tenants.setdefault(name, _Tenant())
        tenant.touched_at = now
        return tenant

    def _closed(self, tenant: _Tenant, ask: Ask, now: float) -> Refused | None:
        """Return the refusal by the window that opens last, if one is closed."""
        asked = (
            (REQUESTS, tenant.requests, 1, ask.bounds.requests_per_minute),
            (TOKENS, tenant.tokens, ask.tokens, ask.bounds.tokens_per_minute),
        )
        closed = [
            (math.inf if opens == NEVER else opens, name, limit)
            for name, window, amount, limit in asked
            if limit is not None and (opens := window.opens_in(now, amount, limit)) != 0
        ]
        if not closed:
            return None
        opens, name, limit = max(closed, key=lambda each: each[0])
        return Refused(name, limit, None if opens == math.inf else opens)


def _place_in(line: Iterable[str], lease: str) -> int:
    """Return how many come before it; all, if it is not there."""
    ahead = 0
    for other in line:
        if other == lease:
            break
        ahead += 1
    return ahead
