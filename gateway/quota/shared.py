"""Limits over all gateways: what is asked of Redis, and how it is written down there."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from gateway.identity.reach import StoreReach
from gateway.quota import keys
from gateway.quota.bounds import REQUESTS, TOKENS, Admitted, Ask, Decision, Queued, Refused, no_place
from gateway.quota.ledger import COUNT_NAMES, Changes
from gateway.quota.scripts import ADMIT, APPLY, RENEW, SERVER_CLOCK

# How long Redis remembers a gateway that says nothing: longer than any batch of its waits to be sent again.
_KEEP_GATEWAY_S = 7 * 86_400


@dataclass(frozen=True, slots=True)
class Applied:
    """What Redis has of this gateway."""

    holds: bool  # whether the batch is in; if not, `last` is the one that the next must follow
    last: int
    admissions: int
    failures: int


@dataclass(frozen=True, slots=True)
class Renewed:
    gateways: int  # that live, this one included
    last: int
    admissions: int
    now: float  # of the store's clock, in seconds


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this gateway holds of one tenant's places and line."""

    tenant: str
    leases: tuple[str, ...]
    tickets: tuple[str, ...]


class SharedLimits:
    """Speaks for one gateway. Every method raises UnavailableError when Redis is away or fails."""

    def __init__(
        self,
        client: Redis,
        reach: StoreReach,
        incarnation: str,
        lease_s: float,
        usage_days: int,
        clock: str = SERVER_CLOCK,
    ) -> None:
        """`incarnation` names this run of this gateway; `clock` is the part of the scripts that sets `now`."""
        self._client = client
        self._reach = reach
        self._incarnation = incarnation
        self._lease_us = round(lease_s * 1e6)
        self._usage_s = usage_days * 86_400
        self._admit = client.register_script(clock + ADMIT)
        self._apply = client.register_script(clock + APPLY)
        self._renew = client.register_script(clock + RENEW)

    async def admit(self, ask: Ask, *, waits: bool) -> Decision:
        """Charge the windows and take a place, or neither. `waits`: the call was told to wait before."""
        tenant, bounds = ask.tenant, ask.bounds
        places = bounds.max_concurrent_requests
        limits = (bounds.requests_per_minute, bounds.tokens_per_minute, places, bounds.max_queued_requests)
        answer: Any = await self._reach.call(
            lambda: self._admit(
                keys=[*keys.quota(tenant), keys.gateway(self._incarnation)],
                args=[
                    ask.lease,
                    *(-1 if limit is None else limit for limit in limits),
                    ask.tokens,
                    self._lease_us,
                    int(waits),
                    _KEEP_GATEWAY_S,
                    f"{self._incarnation}:",
                ],
            )
        )
        if answer[0] == "admitted":
            return Admitted(int(answer[1]) or None, int(answer[2]))
        if answer[0] == "queued":
            return Queued(int(answer[1]))
        return _refusal(ask, answer[1], int(answer[2]))

    async def apply(self, number: int, changes: Changes, *, whatever_was_before: bool) -> Applied:
        """Make the changes of one batch, if it follows the last one. Making it again changes nothing."""
        named, told = _Named(keys.gateway(self._incarnation)), list[Any]()
        self._tell_places(changes, named, told)
        self._tell_usage(changes, named, told)
        answer: Any = await self._reach.call(
            lambda: self._apply(
                keys=named.keys, args=[number, int(whatever_was_before), _KEEP_GATEWAY_S, json.dumps(told)]
            )
        )
        return Applied(bool(answer[0]), *map(int, answer[1:]))

    def _tell_places(self, changes: Changes, named: "_Named", told: list[Any]) -> None:
        for (tenant, second), amount in changes.requests.items():
            told.append(["shift", named[keys.requests(tenant)], second, amount])
        for (tenant, second), amount in changes.tokens.items():
            told.append(["shift", named[keys.tokens(tenant)], second, amount])
        for tenant, leases in changes.freed.items():
            told.append(["free", named[keys.running(tenant)], sorted(leases)])
        for tenant, leases in changes.held.items():
            told.append(["hold", named[keys.running(tenant)], sorted(leases), self._lease_us])
        for tenant, tickets in changes.left.items():
            told.append(["free", named[keys.line(tenant)], sorted(tickets)])
            told.append(["free", named[keys.tickets(tenant)], sorted(tickets)])

    def _tell_usage(self, changes: Changes, named: "_Named", told: list[Any]) -> None:
        for use, counts in changes.usage.items():
            entries = [
                [usage_field(use.model, use.adapter, name), amount]
                for name in COUNT_NAMES
                if (amount := getattr(counts, name))
            ]
            purged, days = named[keys.usage_purged(use.tenant)], named[keys.usage_days(use.tenant)]
            key = named[keys.usage(use.tenant, use.day)]
            told.append(["use", key, entries, purged, use.made_ms, days, use.day, self._usage_s])

    async def renew(self, holdings: Sequence[Holdings]) -> Renewed:
        """Say that this gateway lives, and everything that it holds."""
        names = [keys.GATEWAYS, keys.gateway(self._incarnation)]
        for held in holdings:
            names += [keys.running(held.tenant), keys.tickets(held.tenant)]
        told = json.dumps([[held.leases, held.tickets] for held in holdings])
        answer: Any = await self._reach.call(
            lambda: self._renew(keys=names, args=[self._incarnation, self._lease_us, _KEEP_GATEWAY_S, told])
        )
        return Renewed(int(answer[0]), int(answer[1]), int(answer[2]), int(answer[3]) / 1e6)

    async def sign_off(self) -> None:
        """Count no longer as a gateway that lives."""
        await self._reach.call(lambda: self._client.zrem(keys.GATEWAYS, self._incarnation))


class _Named:
    """Keys of a script, by the position that Lua knows them under."""

    def __init__(self, first: str) -> None:
        self.keys = [first]
        self._positions = {first: 1}

    def __getitem__(self, key: str) -> int:
        if key not in self._positions:
            self.keys.append(key)
            self._positions[key] = len(self.keys)
        return self._positions[key]


def usage_field(model: str, adapter: str, count: str) -> str:
    """Return the name of one number. JSON: no two triples meet, whatever their texts are."""
    return json.dumps([model, adapter, count])


def _refusal(ask: Ask, limit: str, opens_us: int) -> Refused:
    if limit == "places":
        return no_place(ask.bounds)
    value = {REQUESTS: ask.bounds.requests_per_minute, TOKENS: ask.bounds.tokens_per_minute}[limit]
    return Refused(limit, value or 0, None if opens_us < 0 else opens_us / 1e6)
