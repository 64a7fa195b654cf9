"""How tenants share what runs: a step's tokens, the places in it, the slots. Values in, values out; no clock, no cache.

A tenant's *fair share* is its weight's part among the tenants that run or wait.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf

from worker.engine.sequence import Sequence


def divide(num_tokens: int, demands: Mapping[str, int], weights: Mapping[str, float]) -> dict[str, int]:
    """Divide tokens among tenants by weight; what one does not need goes to the others.

    Each gets its demand or, within one token, as much for its weight as anybody. All is given away if it is needed.
    """
    given = dict.fromkeys(demands, 0)
    # Those whose demand is smallest for their weight are served first: what they leave raises everybody's part.
    waiting = sorted(demands, key=lambda tenant: (demands[tenant] / weights[tenant], tenant))
    weight_left = sum(weights[tenant] for tenant in waiting)
    for tenant in waiting:
        part = -int(-num_tokens * weights[tenant] // weight_left)  # rounded up
        given[tenant] = min(demands[tenant], part, num_tokens)
        num_tokens -= given[tenant]
        weight_left -= weights[tenant]
    return given


def allowances(
    catching_up: Iterable[Sequence], front: Mapping[str, Sequence], num_tokens: int, max_chunk_tokens: int
) -> dict[tuple[int, str], int]:
    """Divide what a step has for prompts among priorities and tenants, those included that wait: `front` has one of
    each. High priorities come first.
    """
    demands: dict[int, dict[str, int]] = {}
    weights = {tenant: sequence.request.weight for tenant, sequence in front.items()}
    for sequence in catching_up:
        tenants = demands.setdefault(sequence.request.priority, {})
        tenant = sequence.request.tenant
        tenants[tenant] = tenants.get(tenant, 0) + min(sequence.num_missing, max_chunk_tokens)
        weights.setdefault(tenant, sequence.request.weight)
    for tenant, sequence in front.items():
        tenants = demands.setdefault(sequence.request.priority, {})
        tenants.setdefault(tenant, max_chunk_tokens)
    allowed = {}
    for priority in sorted(demands, reverse=True):
        given = divide(num_tokens, demands[priority], weights)
        num_tokens -= sum(given.values())
        allowed.update({(priority, tenant): part for tenant, part in given.items()})
    return allowed


class Shares:
    """Who has how much of the places and slots at one moment, against its fair share."""

    def __init__(self, running: SequenceOf[Sequence], front: Mapping[str, Sequence], places: int, slots: int) -> None:
        """`running` are ascending by precedence; `front` has one sequence of each tenant that waits."""
        self._running = running
        self._num_places = places
        self._num_slots = slots
        weights = {tenant: sequence.request.weight for tenant, sequence in front.items()}
        self._places: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        for sequence in running:
            tenant = sequence.request.tenant
            weights.setdefault(tenant, sequence.request.weight)
            self._places[tenant] = self._places.get(tenant, 0) + 1
            self._slots[tenant] = self._slots.get(tenant, 0) + _own_slots(sequence)
        self._weights = weights
        self._weight = sum(weights.values())

    def is_above(self, tenant: str) -> bool:
        """Whether a tenant holds more slots than its fair share."""
        return self._slots.get(tenant, 0) > self._fair(tenant) * self._num_slots

    def has_place_for(self, tenant: str) -> bool:
        """Whether a tenant has no more than its fair share of the places with one more. Everybody may have one."""
        return self._places.get(tenant, 0) + 1 <= max(1.0, self._fair(tenant) * self._num_places)

    def has_slots_for(self, tenant: str, num_slots: int) -> bool:
        """Whether a tenant has no more than its fair share of the slots with so many more."""
        return self._slots.get(tenant, 0) + num_slots <= self._fair(tenant) * self._num_slots

    def gives_place_to(self, sequence: Sequence) -> Sequence | None:
        """Return who is to pause so that a waiting `sequence` gets a place: the newest one of who is most above."""
        return self._newest(sequence, [tenant for tenant in self._places if self._can_lose_place(tenant)], self._places)

    def gives_slots_to(self, sequence: Sequence) -> Sequence | None:
        """Return who is to pause so that a waiting `sequence` gets slots: the newest one of who is most above."""
        return self._newest(sequence, [tenant for tenant in self._slots if self.is_above(tenant)], self._slots)

    def _newest(self, sequence: Sequence, tenants: Iterable[str], held: Mapping[str, int]) -> Sequence | None:
        # Never the first by precedence: it ends, whatever others do.
        victims = [
            other
            for other in self._running[1:]
            if other.request.tenant in tenants
            and other.request.tenant != sequence.request.tenant
            and other.request.priority <= sequence.request.priority
        ]
        return max(
            victims,
            key=lambda other: (held[other.request.tenant] / self._weights[other.request.tenant], other.order),
            default=None,
        )

    def _can_lose_place(self, tenant: str) -> bool:
        """Whether a tenant has its fair share of the places with one less; so none is taken back and forth."""
        return self._places[tenant] - 1 >= max(1.0, self._fair(tenant) * self._num_places)

    def _fair(self, tenant: str) -> float:
        return self._weights[tenant] / self._weight


def _own_slots(sequence: Sequence) -> int:
    """Slots that a running sequence holds, but for what the cache had when it came first."""
    lease, admission = sequence.lease, sequence.admission
    if lease is None:
        return 0
    return lease.num_slots if admission is None else max(0, lease.num_slots - admission.hit.total)
