"""Turns by service: each tenant gets its share of tokens. Knows costs, and no order among one tenant's sequences.

Start-time fair queueing over whole requests: a tenant's *level* is the cost of all that it has started, divided by its
weight; the tenant with the least level goes first. What a sequence will cost is charged when it starts and settled when
it ends, so nobody gains by starting many at once.

    cost = prompt tokens computed + `cached_token_cost` for each cached one + tokens put out

What a sequence brings from elsewhere, its prompt included, was computed and charged there: all of it counts as cached.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from worker.engine.sequence import Sequence
from worker.engine.waiting.turns import TurnKey

_MAX_IDLE = 1024  # tenants that are remembered without having anything here
_EXPECTED_OUTPUT = 256.0  # tokens, of a tenant that has put out nothing yet
_LEARNING_RATE = 1 / 16


@dataclass(frozen=True, slots=True)
class _Charge:
    sequence: Sequence
    cached_tokens: int
    cost: float
    weight: float


@dataclass(slots=True)
class _Account:
    """One tenant. It is idle when it has nothing waiting and nothing charged."""

    level: float = 0.0
    weight: float = 1.0
    num_waiting: int = 0
    charges: dict[int, _Charge] = field(default_factory=dict)  # of those that have started, by order
    mean_output: float = _EXPECTED_OUTPUT
    last_turn: int = 0


class FairService:
    """Levels of all tenants.

    A tenant goes on for a *quantum* once its turn has come, so that what it shares among its own requests is used while
    it is cached. The quantum is never more than the largest request that was seen, and nobody starts who is further
    ahead of a waiting tenant than that. So two tenants that always have something waiting are never further apart than
    twice the largest request, divided by their weights.

    Whoever begins to wait joins at the level of the least served one that waits, without what that one was charged for
    and has not had yet: being away earns nothing, and what others hold by then counts for them.
    """

    def __init__(self, cached_token_cost: float, quantum_tokens: int) -> None:
        self._cached_token_cost = cached_token_cost
        self._quantum_tokens = quantum_tokens
        self._active: dict[str, _Account] = {}
        self._idle: OrderedDict[str, _Account] = OrderedDict()  # the longest idle first
        self._idle_level = 0.0  # what was reached when last nobody was active
        self._largest = 0.0  # cost of a request, as far as it is certain
        self._num_turns = 0
        self._turn: str | None = None  # who may go on
        self._turn_left = 0.0

    @property
    def num_tenants(self) -> int:
        """Tenants remembered."""
        return len(self._active) + len(self._idle)

    def level(self, tenant: str) -> float:
        """Return what a tenant has been charged so far, divided by its weight."""
        account = self._active.get(tenant) or self._idle.get(tenant)
        return 0.0 if account is None else account.level

    def arrived(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        account = self._active.get(tenant) or self._idle.pop(tenant, None) or _Account()
        if not account.num_waiting:
            account.level = max(account.level, self._joining_level(account))
            self._turn = None  # who comes needn't wait for the end of another one's
        self._active[tenant] = account
        account.weight = sequence.request.weight
        account.num_waiting += 1

    def left(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        account = self._active[tenant]
        account.num_waiting -= 1
        self._rest(tenant, account)

    def started(self, sequence: Sequence, cached_tokens: int) -> None:
        tenant = sequence.request.tenant
        account = self._active[tenant]
        account.num_waiting -= 1
        if sequence.order in account.charges:
            return  # it was paused; what it costs has been charged
        cost, certain = self._expect(sequence, cached_tokens, account)
        self._largest = max(self._largest, certain)
        self._spend(tenant, account, cost)
        account.level += cost / account.weight
        account.charges[sequence.order] = _Charge(sequence, cached_tokens, cost, account.weight)

    def settled(self, sequence: Sequence) -> None:
        tenant = sequence.request.tenant
        account = self._active.get(tenant)
        charge = account.charges.pop(sequence.order, None) if account is not None else None
        if account is None or charge is None:
            return
        cost = self._cost_so_far(charge)
        account.level += (cost - charge.cost) / charge.weight
        account.mean_output += (len(sequence.outputs) - account.mean_output) * _LEARNING_RATE
        self._largest = max(self._largest, cost)
        self._rest(tenant, account)

    def key(self, tenant: str) -> TurnKey:
        account = self._active[tenant]
        if tenant == self._turn and self._turn_left > 0:
            return (0, account.level, account.last_turn)
        return (1, account.level, account.last_turn)

    def limit(self, contenders: Iterable[str]) -> float:
        """Return the least level."""
        return min([self._active[tenant].level for tenant in contenders], default=math.inf)

    def may_start(self, tenant: str, limit: float) -> bool:
        account = self._active[tenant]
        return (account.level - limit) * account.weight <= self._largest

    def check(self) -> None:
        """Verify the invariants; raises AssertionError."""
        assert not self._active.keys() & self._idle.keys(), "a tenant is active and idle"
        assert len(self._idle) <= _MAX_IDLE, "idle tenants pile up"
        for tenant, account in self._active.items():
            assert account.num_waiting > 0 or account.charges, f"{tenant} is active and has nothing here"

    def _expect(self, sequence: Sequence, cached_tokens: int, account: _Account) -> tuple[float, float]:
        """Return what a sequence will probably cost, and what part of that is certain."""
        given = self._cost_of_given(sequence, sequence.num_given, cached_tokens)
        params = sequence.request.params
        to_come = params.max_new_tokens - sequence.num_inherited
        if params.ignore_eos and not params.stop and not params.stop_token_ids:
            return given + to_come, given + to_come
        # max_new_tokens is often all that the context has room for.
        return given + min(float(to_come), max(1.0, account.mean_output - sequence.num_inherited)), given + 1

    def _cost_so_far(self, charge: _Charge) -> float:
        sequence = charge.sequence
        cached = charge.cached_tokens if sequence.admission is None else sequence.admission.hit.total
        known = sequence.num_given if sequence.num_sampled else max(sequence.num_computed, cached)
        return self._cost_of_given(sequence, known, cached) + sequence.num_sampled

    def _cost_of_given(self, sequence: Sequence, known: int, cached: int) -> float:
        """What the first `known` tokens cost that a sequence came with, of which `cached` were found."""
        if sequence.num_inherited:
            cached = known
        return known - cached + self._cached_token_cost * cached

    def _spend(self, tenant: str, account: _Account, cost: float) -> None:
        """Begin the turn of a tenant, if it is the least served one, or go on with it."""
        self._num_turns += 1
        account.last_turn = self._num_turns
        if tenant == self._turn and self._turn_left > 0:
            self._turn_left -= cost
            return
        waiting = [other.level for other in self._active.values() if other.num_waiting]
        leads = account.level > min(waiting, default=account.level)
        self._turn = None if leads else tenant
        self._turn_left = min(self._quantum_tokens, self._largest) - cost

    def _joining_level(self, joining: _Account) -> float:
        others = [other for other in self._active.values() if other is not joining]
        waiting = [self._level_had(other) for other in others if other.num_waiting]
        if waiting:
            return min(waiting)
        return max([self._level_had(other) for other in others], default=self._idle_level)

    def _level_had(self, account: _Account) -> float:
        """The level of a tenant without what it was charged for and has not had yet."""
        to_come = [(charge.cost - self._cost_so_far(charge)) / charge.weight for charge in account.charges.values()]
        return account.level - sum([max(0.0, cost) for cost in to_come])

    def _rest(self, tenant: str, account: _Account) -> None:
        """Forget a tenant that is idle, sooner or later."""
        if account.num_waiting or account.charges:
            return
        del self._active[tenant]
        if tenant == self._turn:
            self._turn = None
        if not self._active:
            self._idle_level = max(self._idle_level, account.level)
        self._idle[tenant] = account
        if len(self._idle) > _MAX_IDLE:
            self._idle.popitem(last=False)
