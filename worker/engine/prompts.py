"""How much of a step the prompts of each tenant get. Values in, values out; no clock, no cache.

Three rules, in this order: high priorities first; who has little to compute before who has much; the rest by weight.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from worker.engine.sequence import Sequence
from worker.engine.waiting import Front

_LITTLE = 4
"""Who has not even this part of another one's tokens to compute has little."""

_RECENT_S = 10.0
"""Who sent something this long ago may send more at any moment."""


class TenantsAround:
    """Who has sent something of late."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, float] = OrderedDict()  # when last, the longest ago first

    def seen(self, tenant: str, now: float) -> None:
        self._seen[tenant] = now
        self._seen.move_to_end(tenant)

    def are_others(self, tenants: Iterable[str], now: float) -> bool:
        """Whether anybody is around but these."""
        while self._seen and now - next(iter(self._seen.values())) > _RECENT_S:
            self._seen.popitem(last=False)
        return not self._seen.keys() <= set(tenants)


@dataclass(slots=True)
class _Demand:
    """What one tenant has to compute of prompts at one priority."""

    weight: float
    step_tokens: int = 0  # what a single step could compute of it
    all_tokens: int = 0

    def add(self, num_tokens: int, max_chunk_tokens: int) -> None:
        self.step_tokens += min(num_tokens, max_chunk_tokens)
        self.all_tokens += num_tokens


@dataclass(slots=True)
class Allowances:
    """`withheld` tokens are nobody's; the others were divided by priority and tenant."""

    withheld: int = 0
    tokens: dict[tuple[int, str], int] = field(default_factory=dict)


class PromptShares:
    """Divides what steps have for prompts.

    As long as somebody who has little to compute, or nothing just now, is beside a flood, all prompts together get no
    more than `contested_tokens`, unless the former can use more. Else the flood would make every step longer for those
    who have to wait for its end. A flood is a tenant that has more than `flood_tokens` to compute.
    """

    def __init__(self, max_chunk_tokens: int, contested_tokens: int, flood_tokens: int) -> None:
        self._max_chunk_tokens = max_chunk_tokens
        self._contested_tokens = contested_tokens
        self._flood_tokens = flood_tokens
        self._around = TenantsAround()

    def seen(self, tenant: str, now: float) -> None:
        """A tenant has sent something."""
        self._around.seen(tenant, now)

    def divide(
        self, num_tokens: int, catching_up: Iterable[Sequence], front: Mapping[str, Front], now: float
    ) -> Allowances:
        """Divide `num_tokens` among tenants, those included that wait."""
        allowed = Allowances()
        demands = _demands(catching_up, front, self._max_chunk_tokens)
        contested = self._around.are_others([tenant for tenants in demands.values() for tenant in tenants], now)
        left = num_tokens
        for priority in sorted(demands, reverse=True):
            little, much = _by_size(demands[priority])
            given = _divide_demands(left, little)
            left -= sum(given.values())
            contested = contested or bool(little)
            if contested and any(demand.all_tokens > self._flood_tokens for demand in much.values()):
                used = num_tokens - allowed.withheld - left
                withheld = max(0, left - max(0, self._contested_tokens - used))
                allowed.withheld += withheld
                left -= withheld
            given.update(_divide_demands(left, much))
            left -= sum(given[tenant] for tenant in much)
            allowed.tokens.update({(priority, tenant): part for tenant, part in given.items()})
        return allowed


def divide(num_tokens: int, demands: Mapping[str, int], weights: Mapping[str, float]) -> dict[str, int]:
    """Divide tokens among tenants by weight; what one does not need goes to the others.

    Each gets its demand or, but for the rounding to whole tokens, as much for its weight as anybody. All is given away
    if it is needed.
    """
    given = dict.fromkeys(demands, 0)
    # Those whose demand is smallest for their weight are served first: what they leave raises everybody's part.
    waiting = sorted(demands, key=lambda tenant: (demands[tenant] / weights[tenant], tenant))
    # Summed from the end: subtracting a weight from the sum of all could leave nothing of those far smaller.
    weights_left = list(accumulate(weights[tenant] for tenant in reversed(waiting)))
    for tenant in waiting:
        part = -int(-num_tokens * weights[tenant] // weights_left.pop())  # rounded up
        given[tenant] = min(demands[tenant], part, num_tokens)
        num_tokens -= given[tenant]
    return given


def _by_size(demands: Mapping[str, _Demand]) -> tuple[dict[str, _Demand], dict[str, _Demand]]:
    """Return those who have little, and those who have much."""
    most = max(demand.all_tokens / demand.weight for demand in demands.values())
    much = {tenant: demand for tenant, demand in demands.items() if demand.all_tokens / demand.weight * _LITTLE > most}
    return {tenant: demand for tenant, demand in demands.items() if tenant not in much}, much


def _divide_demands(num_tokens: int, demands: Mapping[str, _Demand]) -> dict[str, int]:
    return divide(
        num_tokens,
        {tenant: demand.step_tokens for tenant, demand in demands.items()},
        {tenant: demand.weight for tenant, demand in demands.items()},
    )


def _demands(
    catching_up: Iterable[Sequence], front: Mapping[str, Front], max_chunk_tokens: int
) -> dict[int, dict[str, _Demand]]:
    demands: dict[int, dict[str, _Demand]] = {}
    for sequence in catching_up:
        request = sequence.request
        tenants = demands.setdefault(request.priority, {})
        demand = tenants.setdefault(request.tenant, _Demand(request.weight))
        demand.add(sequence.num_missing, max_chunk_tokens)
    for tenant, waiting in front.items():
        tenants = demands.setdefault(waiting.priority, {})
        tenants.setdefault(tenant, _Demand(waiting.weight)).add(waiting.num_tokens, max_chunk_tokens)
    return demands
