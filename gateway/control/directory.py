"""Which adapter a tenant means by a name, and which of its revisions a request gets."""

from collections.abc import Sequence
from typing import Final

from gateway.control.registrations import Registration, Weights, chosen_order
from gateway.control.registry import AdapterRegistry
from gateway.dispatch.adapters import FleetAdapters, Holders, no_worker_has
from gateway.identity.adapters import Adapter

# Workers that are there may be loading it at this moment.
_LOADED_WITHIN_S: Final = 1.0


class RegisteredAdapters:
    """Implements AdapterDirectory: what is registered by its shares, everything else as workers report it."""

    def __init__(self, registry: AdapterRegistry, holders: Holders) -> None:
        self._registry = registry
        self._holders = holders
        self._reported = FleetAdapters(holders, registry.withdrawn)

    async def find(self, tenant_id: str, model: str, name: str, affinity: str) -> Adapter | None:
        """Raises UnavailableError for one of the tenant's that no connected worker has."""
        await self._registry.ensure_known()
        registration = self._registry.find(tenant_id, model, name)
        if registration is None:
            return await self._reported.find(tenant_id, model, name, affinity)
        loaded = self._loaded(tenant_id, registration, chosen_order(registration, affinity))
        if not loaded:
            raise no_worker_has(name, self._holders.next_attempt_in_s() or _LOADED_WITHIN_S)
        return loaded[0]

    async def list_of(self, tenant_id: str, model: str) -> Sequence[Adapter]:
        await self._registry.ensure_known()
        found = {adapter.name: adapter for adapter in await self._reported.list_of(tenant_id, model)}
        for registration in self._registry.of_tenant(tenant_id, model):
            found.pop(registration.key.name, None)
            loaded = self._loaded(tenant_id, registration, [share.weights for share in registration.shares])
            found.update((adapter.name, adapter) for adapter in loaded[:1])
        return [found[name] for name in sorted(found)]

    async def is_for_all(self, model: str, name: str) -> bool:
        """Whether every tenant may use an adapter of this name. Raises UnavailableError."""
        await self._registry.ensure_known()
        if self._registry.find("", model, name) is not None:  # no tenant has the empty id
            return True
        holders = self._holders.up(model)
        reported = [adapter for holder in holders for adapter in holder.adapters.named("", name)]
        return any(not self._registry.withdrawn(model, adapter) for adapter in reported)

    def revisions(self, model: str, name: str) -> set[str]:
        """Return every revision of a name that some worker has or may have had, for whichever tenants."""
        holders = [*self._holders.up(model), *self._holders.down(model)]
        reported = {each.revision for holder in holders for each in holder.adapters.all() if each.name == name}
        for each in self._registry.all():
            if (each.key.model, each.key.name) == (model, name):
                reported.update(share.weights.revision for share in each.shares)
                reported.update(retired.revision for retired in each.retired)
        return reported

    def _loaded(self, tenant_id: str, registration: Registration, wanted: Sequence[Weights]) -> list[Adapter]:
        """Return those of `wanted` that some connected worker has, in the same order."""
        key = registration.key
        holders = self._holders.up(key.model)
        return [
            Adapter(key.name, weights.revision)
            for weights in wanted
            if any(holder.adapters.has(tenant_id, key.name, weights.revision) for holder in holders)
        ]
