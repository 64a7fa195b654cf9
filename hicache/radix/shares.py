"""Whose slots may go to whom: floors and weights of tenants. Arithmetic over accounts; no tree, no clock.

Every namespace belongs to an account. A tenant with a share has one of its own; all others, and public prefixes, are
together in the common one, in which the policy alone decides.

    0 ........ floor ............... fair .................. all slots of the tier
      nobody    others may have it,   others have it first
      else's    after everybody's
                surplus is gone
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hicache.keys import TOKEN_BYTES
from hicache.radix.node import Account

COMMON = ""  # the name of the common account; no tenant is called that


@dataclass(frozen=True, slots=True)
class Share:
    """What a tenant is promised of each tier.

    `floor` is the fraction of the slots that others' traffic cannot take. `weight` says how the slots are divided when
    everybody wants more than there is; all tenants without a share have a weight of 1 together.
    """

    floor: float = 0.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.floor < 1:
            raise ValueError(f"floor must be at least 0 and less than 1, got {self.floor}")
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight must be greater than 0, got {self.weight}")


class Shares:
    """The accounts, each with its floor and its fair part of both tiers, in whole pages."""

    def __init__(self, shares: Mapping[str, Share], num_slots: int, num_host_slots: int, page_size: int) -> None:
        floors = sum(share.floor for share in shares.values())
        if floors >= 1:
            raise ValueError(f"the floors of all tenants must be less than 1 together, got {floors:g}")
        if COMMON in shares:
            raise ValueError("a share needs the name of a tenant")
        self.common = Account(COMMON, 0)
        self.accounts = [self.common]
        self._by_tenant: dict[str, Account] = {}
        total = 1.0 + sum(share.weight for share in shares.values())
        everybody = {COMMON: Share(weight=1.0), **shares}
        for tenant, share in everybody.items():
            account = self.common if tenant == COMMON else self._open(tenant)
            page_bytes = page_size * TOKEN_BYTES
            account.floor_bytes = _part(share.floor, num_slots, page_bytes)
            account.host_floor_bytes = _part(share.floor, num_host_slots, page_bytes)
            account.fair_bytes = max(account.floor_bytes, _part(share.weight / total, num_slots, page_bytes))
            account.host_fair_bytes = max(
                account.host_floor_bytes, _part(share.weight / total, num_host_slots, page_bytes)
            )

    @property
    def num_floor_slots(self) -> int:
        """Device slots of all floors together."""
        return sum(account.floor_bytes for account in self.accounts) // TOKEN_BYTES

    def of(self, tenant: str) -> Account:
        return self._by_tenant.get(tenant, self.common)

    def _open(self, tenant: str) -> Account:
        account = self._by_tenant[tenant] = Account(tenant, len(self.accounts))
        self.accounts.append(account)
        return account


def _part(fraction: float, num_slots: int, page_bytes: int) -> int:
    return int(fraction * num_slots) * TOKEN_BYTES // page_bytes * page_bytes
