"""What Redis has yet to be told, added up: it takes no more room the longer Redis is away."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, fields, replace

from gateway.quota.accounts import Account
from gateway.quota.admissions import Charge


@dataclass(frozen=True, slots=True)
class Counts:
    """What requests that a worker admitted have used. Named as in the API."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    cached_storage_tokens: int = 0
    public_prefix_tokens: int = 0
    cached_public_tokens: int = 0

    @classmethod
    def of(cls, account: Account) -> "Counts":
        return cls(
            1,
            account.prompt_tokens,
            account.completion_tokens,
            account.cached_device_tokens,
            account.cached_host_tokens,
            account.cached_storage_tokens,
            account.public_prefix_tokens,
            account.cached_public_tokens,
        )

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, name) + getattr(other, name) for name in COUNT_NAMES))


COUNT_NAMES = tuple(each.name for each in fields(Counts))


@dataclass(frozen=True, slots=True)
class Use:
    """Whose usage, of what."""

    tenant: str
    made_ms: int  # when this tenant was created: another one may come under its id
    day: str  # YYYYMMDD, of UTC
    model: str
    adapter: str


@dataclass(frozen=True, slots=True)
class Changes:
    """What one batch tells. Amounts by tenant and second of the store's clock; less than 0 where some is given back."""

    requests: Mapping[tuple[str, int], int]
    tokens: Mapping[tuple[str, int], int]
    freed: Mapping[str, Set[str]]  # leases by tenant
    held: Mapping[str, Set[str]]  # run, and the store does not know it
    left: Mapping[str, Set[str]]  # tickets
    usage: Mapping[Use, Counts]
    settlements: int  # how many requests that ended

    def after(self, charges: Iterable[Charge]) -> "Changes":
        """Return the same, with admissions that are charged before."""
        requests, tokens = Counter(self.requests), Counter(self.tokens)
        for charge in charges:
            requests[charge.tenant, charge.second] += charge.requests
            tokens[charge.tenant, charge.second] += charge.tokens
        return replace(self, requests=requests, tokens=tokens)


@dataclass(slots=True)
class Ledger:
    """Adds changes up until somebody takes them. A lease that is both freed and held was freed first."""

    _requests: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    _tokens: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    _held: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _freed: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _left: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _usage: dict[Use, Counts] = field(default_factory=dict)
    settlements: int = 0

    def __bool__(self) -> bool:
        return bool(self.settlements or self._requests or self._tokens or self._held or self._freed or self._left)

    def charge(self, tenant: str, second: int, requests: int, tokens: int) -> None:
        """Somebody was admitted then without the store, or (amounts below 0) did not use all of it."""
        if requests:
            self._requests[tenant, second] += requests
        if tokens:
            self._tokens[tenant, second] += tokens

    def hold(self, tenant: str, lease: str) -> None:
        """A request runs that was admitted without the store."""
        self._held[tenant].add(lease)

    def held_are_told(self) -> None:
        """All that run are told to the store now in another way: it may know each of them."""
        self._held.clear()

    def free(self, tenant: str, lease: str) -> None:
        if lease in self._held[tenant]:
            self._held[tenant].discard(lease)
        else:
            self._freed[tenant].add(lease)

    def leave(self, tenant: str, ticket: str) -> None:
        """Somebody waits no longer."""
        self._left[tenant].add(ticket)

    def settle(self, use: Use | None, counts: Counts) -> None:
        """A request has ended. `use` None: without having used anything."""
        self.settlements += 1
        if use is not None:
            self._usage[use] = self._usage.get(use, Counts()) + counts

    def forget_before(self, second: int) -> None:
        """Drop what windows no longer count."""
        for amounts in (self._requests, self._tokens):
            for key in [key for key in amounts if key[1] < second]:
                del amounts[key]

    def take(self) -> Changes:
        """Return all there is, and begin anew."""
        changes = Changes(
            {key: amount for key, amount in self._requests.items() if amount},
            {key: amount for key, amount in self._tokens.items() if amount},
            {tenant: leases for tenant, leases in self._freed.items() if leases},
            {tenant: leases for tenant, leases in self._held.items() if leases},
            {tenant: tickets for tenant, tickets in self._left.items() if tickets},
            self._usage,
            self.settlements,
        )
        self.__init__()  # type: ignore[misc]
        return changes
