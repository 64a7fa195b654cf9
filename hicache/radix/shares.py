"""Whose slots may go to whom: floors and weights of tenants. Arithmetic over accounts; no tree, no clock.

Every namespace belongs to an account. A tenant with a share has one of its own; all others, and public prefixes, are
together in the common one, in which the policy alone decides.

    0 ........ floor ............... fair .................. all slots of the tier
      nobody    others may have it,   others have it first
      else's    after everybody's
                surplus is gone

A share is there from the start (`Share`), or is said later and changes (`Terms`).
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hicache.errors import InvariantError
from hicache.keys import TOKEN_BYTES, Namespace
from hicache.radix.node import Account

COMMON = ""  # the name of the common account; no tenant is called that

_RESERVE = 0.1
"""The part of each tier that floors which are said later leave to everybody."""

_MAX_ACCOUNTS = 256
"""With floors that were said later; each makes an eviction a little slower."""


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


class Owner(NamedTuple):
    """The last namespace of a key, and the tenant whose it is. Those before it are public."""

    namespace: Namespace
    tenant: str


@dataclass(frozen=True, slots=True)
class Terms:
    """What a tenant is promised of both tiers, in packed bytes. Without any of it, and without a share, nothing."""

    floor_bytes: int = 0
    host_floor_bytes: int = 0
    weight: float = 1.0


class Shares:
    """The accounts, each with its floor and its fair part of both tiers, in whole pages.

    Invariant: the floors of all accounts are less than each tier.
    """

    def __init__(self, shares: Mapping[str, Share], num_slots: int, num_host_slots: int, page_size: int) -> None:
        floors = sum(share.floor for share in shares.values())
        if floors >= 1:
            raise ValueError(f"the floors of all tenants must be less than 1 together, got {floors:g}")
        if COMMON in shares:
            raise ValueError("a share needs the name of a tenant")
        self.common = Account(COMMON, 0)
        self.accounts = [self.common]
        self.floor_bytes = self.host_floor_bytes = 0  # of all accounts together
        self._configured = dict(shares)
        self._by_tenant: OrderedDict[str, Account] = OrderedDict()  # last those whose terms were said last
        self._num_slots = num_slots
        self._num_host_slots = num_host_slots
        self._page_bytes = page_size * TOKEN_BYTES
        for tenant, share in shares.items():
            self.open(tenant)
            self._assign(self._by_tenant[tenant], self._configured_terms(share))
        self._divide()

    def of(self, tenant: str) -> Account:
        return self._by_tenant.get(tenant, self.common)

    def terms(self, tenant: str, floor_slots: int, weight: float, largest_lease: int) -> Terms:
        """Return what a tenant can be promised that asks for `floor_slots` of each tier; 0: for what is configured.

        Others keep what they are promised, and somebody else a lease of `largest_lease` slots. Floors that are said
        later leave `_RESERVE` of each tier to all; one that gets nothing is as if it had not asked.
        """
        wanted, reserve = self.wanted(tenant, floor_slots, weight), _RESERVE if floor_slots else 0.0
        if wanted == Terms():
            return wanted
        account = self._by_tenant.get(tenant)
        has = Terms() if account is None else Terms(account.floor_bytes, account.host_floor_bytes)
        most = min(int((1 - reserve) * self._num_slots), self._num_slots - max(largest_lease, 1)) * TOKEN_BYTES
        host_most = min(int((1 - reserve) * self._num_host_slots), self._num_host_slots - 1) * TOKEN_BYTES
        # What it has was made sure of before: nobody is here for whom it is too much.
        most = max(most - self.floor_bytes + has.floor_bytes, has.floor_bytes)
        host_most = max(host_most - self.host_floor_bytes + has.host_floor_bytes, has.host_floor_bytes)
        terms = Terms(
            self._whole_pages(min(wanted.floor_bytes, most)),
            self._whole_pages(min(wanted.host_floor_bytes, host_most)),
            wanted.weight,
        )
        if tenant in self._configured:
            return terms
        if not terms.floor_bytes or (account is None and not self._has_room()):
            return Terms()
        return terms

    def wanted(self, tenant: str, floor_slots: int, weight: float) -> Terms:
        """Return what a tenant would be promised if there were enough for all."""
        if tenant == COMMON:
            return Terms()
        if floor_slots:
            size = self._whole_pages(floor_slots * TOKEN_BYTES)
            return Terms(size, size, weight)
        share = self._configured.get(tenant)
        return Terms() if share is None else self._configured_terms(share)

    def changes_account(self, tenant: str, terms: Terms) -> bool:
        """Whether a tenant gets an account of its own with these terms, or loses it."""
        return (terms.floor_bytes > 0 or tenant in self._configured) != (tenant in self._by_tenant)

    def set(self, tenant: str, terms: Terms) -> None:
        """Change what a tenant is promised, which has an account of its own or gets none by that."""
        account = self._by_tenant.get(tenant)
        if account is None:
            return
        self._by_tenant.move_to_end(tenant)
        if terms != Terms(account.floor_bytes, account.host_floor_bytes, account.weight):
            self._assign(account, terms)
            self._divide()

    def open(self, tenant: str) -> Account:
        """Give a tenant an account of its own, without anything in it."""
        account = self._by_tenant[tenant] = Account(tenant, len(self.accounts))
        self.accounts.append(account)
        return account

    def close(self, tenant: str) -> Account:
        """Take its account away from a tenant; there must be nothing in it. The last one takes its place."""
        account = self._by_tenant.pop(tenant)
        last = self.accounts.pop()
        if last is not account:
            self.accounts[account.index] = last
            last.index, account.index = account.index, last.index
        self._assign(account, Terms())
        self._divide()
        return account

    def unused(self) -> str | None:
        """Return whose account can be closed for another one, if there are as many as there may be; "" for nobody's."""
        if len(self._by_tenant) - len(self._configured) < _MAX_ACCOUNTS:
            return None
        return next((tenant for tenant, account in self._by_tenant.items() if self._is_unused(account)), COMMON)

    def check(self) -> None:
        """Raise InvariantError for the first thing that does not hold between accounts."""
        numbers = [account.index for account in self.accounts]
        found = {
            "floor_bytes": sum(account.floor_bytes for account in self.accounts),
            "host_floor_bytes": sum(account.host_floor_bytes for account in self.accounts),
        }
        _require(self.accounts[0] is self.common, "the common account is not the first")
        _require(numbers == list(range(len(self.accounts))), "accounts are misnumbered")
        _require(set(self.accounts[1:]) == set(self._by_tenant.values()), "an account belongs to nobody")
        _require(self._configured.keys() <= self._by_tenant.keys(), "a configured share has no account")
        for name, value in found.items():
            _require(getattr(self, name) == value, f"{name} is {getattr(self, name)}, the accounts make {value}")
        _require(self.floor_bytes < self._num_slots * TOKEN_BYTES, "all of the device is promised")
        _require(self.host_floor_bytes <= self._num_host_slots * TOKEN_BYTES, "more is promised than the host has")

    def _has_room(self) -> bool:
        return self.unused() != COMMON

    def _is_unused(self, account: Account) -> bool:
        held = account.device_bytes or account.host_bytes
        return not held and account.tenant not in self._configured

    def _configured_terms(self, share: Share) -> Terms:
        return Terms(
            self._whole_pages(int(share.floor * self._num_slots) * TOKEN_BYTES),
            self._whole_pages(int(share.floor * self._num_host_slots) * TOKEN_BYTES),
            share.weight,
        )

    def _assign(self, account: Account, terms: Terms) -> None:
        self.floor_bytes += terms.floor_bytes - account.floor_bytes
        self.host_floor_bytes += terms.host_floor_bytes - account.host_floor_bytes
        account.floor_bytes, account.host_floor_bytes = terms.floor_bytes, terms.host_floor_bytes
        account.weight = terms.weight

    def _divide(self) -> None:
        """Say what is fair, by the weights of all."""
        total = sum(account.weight for account in self.accounts)
        for account in self.accounts:
            part = account.weight / total
            account.fair_bytes = max(account.floor_bytes, self._part(part, self._num_slots))
            account.host_fair_bytes = max(account.host_floor_bytes, self._part(part, self._num_host_slots))

    def _part(self, fraction: float, num_slots: int) -> int:
        return self._whole_pages(int(fraction * num_slots) * TOKEN_BYTES)

    def _whole_pages(self, size: int) -> int:
        return max(0, size) // self._page_bytes * self._page_bytes


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)
