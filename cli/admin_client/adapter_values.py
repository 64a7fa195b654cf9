"""Registered adapters as values that print well."""

from dataclasses import dataclass
from typing import Self

from cli.admin_client.values import time_of
from radixgate.v1 import admin_pb2


@dataclass(frozen=True, slots=True)
class Revision:
    revision: str
    path: str
    traffic_percent: int
    register_time: str

    @classmethod
    def of(cls, message: admin_pb2.AdapterRevision) -> Self:
        return cls(message.revision, message.path, message.traffic_percent, time_of(message.register_time))


@dataclass(frozen=True, slots=True)
class Placement:
    worker: str
    revision: str
    loaded: bool
    error: str


@dataclass(frozen=True, slots=True)
class RegisteredAdapter:
    name: str
    model: str
    tenants: tuple[str, ...]  # that may use it; none named: all
    revisions: tuple[Revision, ...]
    previous: Revision | None
    placements: tuple[Placement, ...]

    @classmethod
    def of(cls, message: admin_pb2.RegisteredAdapter) -> Self:
        return cls(
            message.name,
            message.model,
            tuple(message.tenants),
            tuple(map(Revision.of, message.revisions)),
            Revision.of(message.previous) if message.HasField("previous") else None,
            tuple(Placement(each.worker, each.revision, each.loaded, each.error) for each in message.placements),
        )


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """One revision of an adapter, in a table."""

    name: str
    model: str
    tenants: tuple[str, ...]
    revision: str
    traffic: str
    loaded: str
    path: str
    trouble: str


def adapter_rows(adapter: RegisteredAdapter) -> list[AdapterRow]:
    """Return a row for each revision, and one for what a rollback would go back to."""
    known = [(revision, f"{revision.traffic_percent} %") for revision in adapter.revisions]
    serving = {revision.revision for revision in adapter.revisions}
    if adapter.previous is not None and adapter.previous.revision not in serving:
        known.append((adapter.previous, "previous"))
    return [_row(adapter, revision, traffic) for revision, traffic in known]


def _row(adapter: RegisteredAdapter, revision: Revision, traffic: str) -> AdapterRow:
    places = [place for place in adapter.placements if place.revision == revision.revision]
    loaded = f"{sum(place.loaded for place in places)} of {len(places)}" if places else ""
    trouble = "; ".join(f"{place.worker}: {place.error}" for place in places if place.error)
    return AdapterRow(
        adapter.name, adapter.model, adapter.tenants, revision.revision, traffic, loaded, revision.path, trouble
    )


@dataclass(frozen=True, slots=True)
class Unregistered:
    name: str
    failed_sequences: int
