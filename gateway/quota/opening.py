"""Puts the quotas of a gateway together."""

import uuid
from typing import Protocol

from redis.asyncio import Redis

from gateway.config import QuotaConfig
from gateway.identity.reach import StoreReach
from gateway.quota.costs import TokenCosts
from gateway.quota.deciding import Alone, Decider, EverythingGoes, NothingGoes, OwnPart, holdings_of
from gateway.quota.journal import Journal, JournalObserver
from gateway.quota.lines import Lines
from gateway.quota.local import LocalLimits
from gateway.quota.quotas import CurrentTerms, QuotaObserver, TenantQuotas
from gateway.quota.scripts import SERVER_CLOCK
from gateway.quota.shared import SharedLimits


class Observer(QuotaObserver, JournalObserver, Protocol): ...


def open_quotas(
    client: Redis,
    reach: StoreReach,
    config: QuotaConfig,
    observer: Observer,
    terms_now: CurrentTerms,
    clock: str = SERVER_CLOCK,
) -> TenantQuotas:
    """Return the quotas of one gateway, as a gateway that nobody has seen before."""
    incarnation = uuid.uuid4().hex
    local, lines = LocalLimits(), Lines(config.max_queue_s)
    store = SharedLimits(client, reach, incarnation, config.lease_s, config.usage_days, clock)
    journal = Journal(store, lambda: holdings_of(local), config.lease_s, observer, lines.wake)
    decider = Decider(store, local, journal, _alone(config, local, journal))
    return TenantQuotas(decider, journal, lines, local, TokenCosts.of(config), incarnation, observer, terms_now)


def _alone(config: QuotaConfig, local: LocalLimits, journal: Journal) -> Alone:
    match config.store_away:
        case "local":
            return OwnPart(local, lambda: journal.gateways)
        case "allow":
            return EverythingGoes(local)
        case "refuse":
            return NothingGoes()
