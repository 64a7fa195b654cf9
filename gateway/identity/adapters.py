"""Which LoRA adapters a tenant may name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Adapter:
    name: str
    # Digest of weights and configuration: other weights under the same name are another adapter to the cache.
    revision: str


class AdapterDirectory(Protocol):
    """The adapters of all tenants. What a tenant may not use does not exist for it."""

    async def find(self, tenant_id: str, model: str, name: str, affinity: str) -> Adapter | None:
        """Return what the tenant means by a name. Raises UnavailableError for what can't be had at the moment.

        Where several revisions share the traffic, those who bring the same `affinity` get the same one.
        """
        ...

    async def list_of(self, tenant_id: str, model: str) -> Sequence[Adapter]:
        """Return all that the tenant may name, by name."""
        ...
