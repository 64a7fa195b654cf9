"""Which LoRA adapters a tenant may name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Adapter:
    name: str
    # Digest of weights and configuration: other weights under the same name are another adapter to the cache.
    revision: str


class AdapterDirectory(Protocol):
    """The adapters of all tenants. What a tenant may not use does not exist for it."""

    async def find(self, tenant_id: str, model: str, name: str) -> Adapter | None: ...

    async def list_of(self, tenant_id: str, model: str) -> Sequence[Adapter]: ...


@dataclass(frozen=True, slots=True)
class FixedAdapters:
    """Adapters known from the start: (tenant, model) -> adapters. A deployment without adapters has an empty one."""

    adapters: Mapping[tuple[str, str], Sequence[Adapter]] = field(default_factory=dict)

    async def find(self, tenant_id: str, model: str, name: str) -> Adapter | None:
        return next((adapter for adapter in await self.list_of(tenant_id, model) if adapter.name == name), None)

    async def list_of(self, tenant_id: str, model: str) -> Sequence[Adapter]:
        return self.adapters.get((tenant_id, model), ())
