"""Whose work it was, in labels whose number is bounded: tenant and adapter."""

from collections.abc import Callable, Mapping

from metrics.labels import OTHER, TopLabels

_SEPARATOR = "\0"  # in no tenant id

Forget = Callable[[Mapping[str, str]], None]


class WorkLabels:
    """Labels for work. An adapter has a label of its own only while its tenant has one.

    Where a label has to go, `forget` is called with it, so that every series that carries it can go too.
    """

    def __init__(self, max_tenants: int, max_adapters: int, forget: Forget, clock: Callable[[], float]) -> None:
        self._forget = forget
        self._clock = clock
        self._tenants = TopLabels(max_tenants, self._forget_tenant)
        self._adapters = TopLabels(max_adapters, self._forget_adapter)

    def of_tenant(self, tenant: str) -> str:
        """Return the label of `tenant` as things stand."""
        return self._tenants.label(tenant)

    def observe_tenant(self, tenant: str, weight: float) -> str:
        """Count work of a tenant and return its label."""
        return self._tenants.observe(tenant, weight, now=self._clock())

    def observe(self, tenant: str, adapter: str, weight: float) -> tuple[str, str]:
        """Count work and return the labels of its tenant and its adapter ("" for none)."""
        now = self._clock()
        tenant_label = self._tenants.observe(tenant, weight, now=now)
        # An adapter may be called "other": its series are those of all that share the label, and must not be forgotten.
        if adapter != OTHER and adapter and tenant_label == tenant:
            adapter_label = self._adapters.observe(f"{tenant}{_SEPARATOR}{adapter}", weight, now=now)
            return tenant_label, adapter if adapter_label != OTHER else OTHER
        return tenant_label, OTHER if adapter else ""

    def _forget_tenant(self, tenant: str) -> None:
        self._forget({"tenant": tenant})

    def _forget_adapter(self, pair: str) -> None:
        tenant, adapter = pair.split(_SEPARATOR)
        self._forget({"tenant": tenant, "adapter": adapter})
