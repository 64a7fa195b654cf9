"""The adapters that connected workers say they have, as tenants may see them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import NoWorkerError
from gateway.identity.adapters import Adapter
from radixgate.v1 import worker_pb2


@dataclass(frozen=True, slots=True)
class ReportedAdapter:
    """One adapter of one worker."""

    name: str
    revision: str
    tenants: frozenset[str]  # that may use it; empty: all
    load_time: tuple[int, int]  # seconds and nanoseconds, by the worker's clock

    def is_for(self, tenant_id: str) -> bool:
        return not self.tenants or tenant_id in self.tenants


class ReportedAdapters:
    """All adapters of one worker. A tenant may have several revisions of one name, never two adapters of it."""

    def __init__(self, adapters: Iterable[worker_pb2.Adapter] = ()) -> None:
        by_name: dict[str, list[ReportedAdapter]] = defaultdict(list)
        for adapter in adapters:
            by_name[adapter.name].append(_reported(adapter))
        self._by_name: Mapping[str, Sequence[ReportedAdapter]] = dict(by_name)

    def all(self) -> list[ReportedAdapter]:
        return [adapter for named in self._by_name.values() for adapter in named]

    def named(self, tenant_id: str, name: str) -> list[ReportedAdapter]:
        """Return the revisions of what a tenant means by a name; none of what only others may use."""
        return [adapter for adapter in self._by_name.get(name, ()) if adapter.is_for(tenant_id)]

    def has(self, tenant_id: str, name: str, revision: str) -> bool:
        """Whether a tenant may use this revision of an adapter."""
        return any(adapter.revision == revision for adapter in self.named(tenant_id, name))

    def names(self, tenant_id: str) -> set[str]:
        """Return the names that a tenant may use."""
        return {name for name in self._by_name if self.named(tenant_id, name)}


class AdapterHolder(Protocol):
    """A worker, as far as adapters go."""

    @property
    def adapters(self) -> ReportedAdapters: ...


class Holders(Protocol):
    """Which workers there are for a model, by its name."""

    def up(self, model: str) -> Sequence[AdapterHolder]:
        """Return those that take requests for it now."""
        ...

    def down(self, model: str) -> Sequence[AdapterHolder]:
        """Return those that served it last and are away."""
        ...

    def next_attempt_in_s(self) -> float | None:
        """Return the time until one that is away may be back."""
        ...


Withdrawn = Callable[[str, ReportedAdapter], bool]  # (model, adapter) -> whether it is there for nobody any more


class FleetAdapters:
    """Implements AdapterDirectory from what workers report.

    Where they have a name in several revisions, as while new weights go around, it means the one that most of them
    have; of those with equally many the one that was loaded last anywhere. Every gateway that is told the same chooses
    the same.
    """

    def __init__(self, holders: Holders, withdrawn: Withdrawn = lambda model, adapter: False) -> None:
        self._holders = holders
        self._withdrawn = withdrawn

    async def find(self, tenant_id: str, model: str, name: str, affinity: str = "") -> Adapter | None:
        """Raises NoWorkerError for an adapter of the tenant that only workers have which are away."""
        found = _choose(self._named(self._holders.up(model), tenant_id, model, name))
        if found is None and self._named(self._holders.down(model), tenant_id, model, name):
            raise no_worker_has(name, self._holders.next_attempt_in_s())
        return found

    async def list_of(self, tenant_id: str, model: str) -> Sequence[Adapter]:
        holders = self._holders.up(model)
        names = set().union(*(holder.adapters.names(tenant_id) for holder in holders))
        chosen = [_choose(self._named(holders, tenant_id, model, name)) for name in sorted(names)]
        return [adapter for adapter in chosen if adapter is not None]

    def _named(self, holders: Sequence[AdapterHolder], tenant_id: str, model: str, name: str) -> list[ReportedAdapter]:
        return [
            adapter
            for holder in holders
            for adapter in holder.adapters.named(tenant_id, name)
            if not self._withdrawn(model, adapter)
        ]


def no_worker_has(name: str, retry_after_s: float | None) -> NoWorkerError:
    return NoWorkerError(f"no worker that has adapter {name!r} is connected at the moment", retry_after_s=retry_after_s)


def _choose(found: Iterable[ReportedAdapter]) -> Adapter | None:
    by_revision: dict[str, list[ReportedAdapter]] = defaultdict(list)
    for adapter in found:
        by_revision[adapter.revision].append(adapter)
    if not by_revision:
        return None
    revision, same = max(
        by_revision.items(), key=lambda item: (len(item[1]), max(each.load_time for each in item[1]), item[0])
    )
    return Adapter(same[0].name, revision)


def _reported(adapter: worker_pb2.Adapter) -> ReportedAdapter:
    load_time = adapter.load_time
    return ReportedAdapter(
        adapter.name, adapter.revision, frozenset(adapter.tenants), (load_time.seconds, load_time.nanos)
    )
