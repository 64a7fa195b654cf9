"""How tenants share the places and slots of what runs. Values in, values out; no clock, no cache.

A tenant's *fair share* is its weight's part among the tenants that run or wait.
"""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

from worker.engine.sequence import Sequence
from worker.engine.waiting import Front

_MARGIN = 1.25
"""Who has something already starts more only if another one that pauses for it keeps this much of its fair share."""


class Shares:
    """Who has how much of the places and slots at one moment, against its fair share."""

    def __init__(self, running: SequenceOf[Sequence], front: Mapping[str, Front], places: int, slots: int) -> None:
        """`running` are ascending by precedence; `front` is of the tenants that wait."""
        self._running = running
        self._num_places = places
        self._num_slots = slots
        weights = {tenant: waiting.weight for tenant, waiting in front.items()}
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
        margin = _MARGIN if self._places.get(sequence.request.tenant) else 1.0
        victims = [other for other in self._victims(sequence) if self._can_spare_place(other, margin)]
        return self._newest(victims, self._places)

    def gives_slots_to(self, sequence: Sequence) -> Sequence | None:
        """Return who is to pause so that `sequence` gets slots: the newest one of who is most above."""
        more = sequence.lease is None and self._slots.get(sequence.request.tenant)
        margin = _MARGIN if more else 1.0
        victims = [other for other in self._victims(sequence) if self._can_spare_slots(other, margin)]
        return self._newest(victims, self._slots)

    def _victims(self, sequence: Sequence) -> list[Sequence]:
        # Never the first by precedence: it ends, whatever others do.
        return [
            other
            for other in self._running[1:]
            if other.request.tenant != sequence.request.tenant and other.request.priority <= sequence.request.priority
        ]

    def _newest(self, victims: SequenceOf[Sequence], held: Mapping[str, int]) -> Sequence | None:
        return max(
            victims,
            key=lambda other: (held[other.request.tenant] / self._weights[other.request.tenant], other.order),
            default=None,
        )

    # With one less a tenant still has its fair share and some more; so nothing is taken back and forth.

    def _can_spare_place(self, sequence: Sequence, margin: float) -> bool:
        tenant = sequence.request.tenant
        return self._places[tenant] - 1 >= max(1.0, margin * self._fair(tenant) * self._num_places)

    def _can_spare_slots(self, sequence: Sequence, margin: float) -> bool:
        tenant = sequence.request.tenant
        return self._slots[tenant] - _own_slots(sequence) >= margin * self._fair(tenant) * self._num_slots

    def _fair(self, tenant: str) -> float:
        return self._weights[tenant] / self._weight


def _own_slots(sequence: Sequence) -> int:
    """Slots that a running sequence holds, but for what the cache had when it came first."""
    lease, admission = sequence.lease, sequence.admission
    if lease is None:
        return 0
    return lease.num_slots if admission is None else max(0, lease.num_slots - admission.hit.total)
