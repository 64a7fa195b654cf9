"""Which models and adapters a caller may use."""

from dataclasses import dataclass

from gateway.dispatch.fleet import Fleet
from gateway.identity.adapters import AdapterDirectory
from gateway.identity.callers import Caller
from gateway.quota.accounts import Account, Demand, Quotas


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A model as its caller may use it."""

    name: str
    context_length: int
    adapters: tuple[str, ...]
    simulated: bool = False


class Offers:
    """What is served now, as far as the caller may see it."""

    def __init__(self, fleet: Fleet, adapters: AdapterDirectory, quotas: Quotas) -> None:
        self._fleet = fleet
        self._adapters = adapters
        self._quotas = quotas

    async def models(self, caller: Caller) -> list[OfferedModel]:
        """Return what the caller may use, by name. Raises QuotaExceededError."""
        self._quotas.precheck(caller)
        async with self._quotas.admit(caller, Demand("ListModels"), Account()):
            return [
                OfferedModel(
                    model.name, model.context_length, await self._adapters_of(caller, model.name), model.simulated
                )
                for model in self._fleet.models()
                if caller.may_use_model(model.name)
            ]

    async def _adapters_of(self, caller: Caller, model: str) -> tuple[str, ...]:
        adapters = await self._adapters.list_of(caller.tenant_id, model)
        return tuple(adapter.name for adapter in adapters if caller.may_use_adapter(adapter.name))
