"""How many series a process can show at most: what each label can be, and what that makes of each family.

Tenants and adapters are bounded by `labels`, whatever the traffic; the other labels by what the code says, and by how
many workers and models there are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from metrics.described import Described
from metrics.labels import most_leaving

# Label values by name, "" included where it occurs. Tests compare them with what the code really says.
_VALUES: Final[Mapping[str, int]] = {
    "tier": 3,
    "source": 4,  # a tier, or computed
    "state": 3,
    "direction": 2,
    "change": 2,
    "kind": 4,
    "code": 17,
    "by": 5,
    "limit": 5,
    "reason": 32,
    "policy": 4,
    "cause": 7,
    "why": 9,
    # One process has one of each.
    "version": 1,
    "model_revision": 1,
    "device": 1,
    "number_format": 1,
    "store": 1,
}
_OUTCOMES: Final[Mapping[str, int]] = {
    "radixgate_sequences_finished_total": 9,
    "radixgate_cache_events_total": 2,
    "radixgate_certificate_loads_total": 7,
    "radixgate_worker_registrations_total": 3,
    "radixgate_gateway_certificate_loads_total": 7,
    "radixgate_gateway_signing_key_fetches_total": 3,
    "radixgate_gateway_quota_decisions_total": 3,
    "radixgate_gateway_moves_total": 2,
    "radixgate_gateway_predictions_total": 3,
    "radixgate_gateway_cache_digests_total": 2,
    "radixgate_gateway_worker_wait_seconds": 2,
}
TENANT_METHODS: Final = 8  # of the inference service and of HTTP; the others are operators', who are no tenants
OPERATOR_METHODS: Final = 32


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one process may meet. `workers` and `models` are those of a gateway."""

    tenants: int = 50
    adapters: int = 200
    workers: int = 16
    models: int = 4

    @property
    def tenant_values(self) -> int:
        """Those with a label, those that have just lost it, `other`, and nobody."""
        return self.tenants + most_leaving(self.tenants) + 2

    @property
    def adapter_pairs(self) -> int:
        """Of a tenant and its adapter: those with a label, those that lost it, and of each tenant `other` and none."""
        return self.adapters + most_leaving(self.adapters) + 2 * self.tenant_values

    def combinations(self, family: Described) -> int:
        """Return how many combinations of label values a family can have at most."""
        left, found = set(family.labels), 1
        if {"tenant", "adapter"} <= left:
            left -= {"tenant", "adapter"}
            found *= self.adapter_pairs
        if {"tenant", "method"} <= left:
            left -= {"tenant", "method"}
            found *= TENANT_METHODS * self.tenant_values + OPERATOR_METHODS
        for label in left:
            found *= self._values(family, label)
        return found

    def most_samples(self, families: Iterable[Described]) -> int:
        """Return how many samples a scrape of these families can have at most."""
        return sum(self.combinations(family) * family.samples for family in families)

    def _values(self, family: Described, label: str) -> int:
        match label:
            case "tenant":
                return self.tenant_values
            case "worker":
                return 1 if family.process == "worker" else self.workers
            case "model":
                return 1 if family.process == "worker" else self.models
            case "method":
                return TENANT_METHODS + OPERATOR_METHODS
            case "outcome":
                return _OUTCOMES[family.name]
            case _:
                return _VALUES[label]
