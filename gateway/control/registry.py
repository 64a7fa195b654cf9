"""The registered adapters of the deployment, as this gateway knows them."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from gateway.control.registrations import AdapterKey, Registration, Retired, Share, Weights
from gateway.control.shelf import Shelf, Shelved
from gateway.dispatch.adapters import ReportedAdapter
from gateway.errors import AlreadyExistsError, FailedPreconditionError, UnavailableError

_log = structlog.get_logger(__name__)

MAX_REGISTRATIONS = 1000
_MAX_ATTEMPTS = 20

Decide = Callable[[Registration], Registration]


class AdapterRegistry:
    """Keeps what the shelf held when it was last read. Invariant: at most one registration for each key."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._shelved: Shelved | None = None  # None until it has been read once
        self._by_name: Mapping[tuple[str, str], Sequence[Registration]] = {}

    async def refresh(self) -> None:
        """Read again what has changed. Raises UnavailableError, and what was known is kept."""
        shelved = await self._shelf.read()
        if shelved is self._shelved:
            return
        by_name: dict[tuple[str, str], list[Registration]] = defaultdict(list)
        for text in shelved.documents.values():
            registration = _read(text)
            by_name[registration.key.model, registration.key.name].append(registration)
        self._shelved, self._by_name = shelved, dict(by_name)

    async def ensure_known(self) -> None:
        """Raises UnavailableError where nothing was ever read and nothing can be."""
        if self._shelved is None:
            await self.refresh()

    def all(self) -> list[Registration]:
        """Return everything that is registered, by model and name, and what was and may still lie on workers."""
        found = [each for named in self._by_name.values() for each in named]
        return sorted(found, key=lambda each: (each.key.model, each.key.name, sorted(each.key.tenants)))

    def find(self, tenant_id: str, model: str, name: str) -> Registration | None:
        """Return what a tenant means by a name, if it is registered."""
        named = self._by_name.get((model, name), ())
        return next((each for each in named if each.shares and each.key.is_for(tenant_id)), None)

    def get(self, key: AdapterKey) -> Registration | None:
        named = self._by_name.get((key.model, key.name), ())
        return next((each for each in named if each.key == key), None)

    def of_tenant(self, tenant_id: str, model: str) -> list[Registration]:
        """Return the registered adapters that a tenant may use."""
        found = [self.find(tenant_id, model, name) for of, name in self._by_name if of == model]
        return [registration for registration in found if registration is not None]

    def withdrawn(self, model: str, adapter: ReportedAdapter) -> bool:
        """Whether what a worker reports was registered once, and is to go."""
        registration = self.get(AdapterKey(model, adapter.name, adapter.tenants))
        if registration is None:
            return False
        return any(each.covers(adapter.revision, adapter.load_time[0]) for each in registration.retired)

    async def change(self, key: AdapterKey, decide: Decide, now: float) -> Registration:
        """Put what `decide` makes of what is there now; it may be asked several times, and may raise.

        Raises AlreadyExistsError where other tenants' registration of the name is in the way, UnavailableError.
        """
        for _ in range(_MAX_ATTEMPTS):
            await self.refresh()
            seen = self._shelved or Shelved()
            before = self.get(key) or Registration(key)
            after = decide(before)
            if after.shares:
                self.refuse_overlap(key)
            after.check()
            if after == before:
                return after
            changes: dict[str, str | None] = {
                _id(each.key): None for each in self.all() if each.is_forgotten(now) and each.key != key
            }
            self._refuse_excess(key, changes)
            if await self._shelf.write(seen, {**changes, _id(key): _written(after)}):
                await self.refresh()
                return after
        raise UnavailableError("other operators are changing adapters at the same time", retry_after_s=1.0)

    def refuse_overlap(self, key: AdapterKey) -> None:
        """Raises AlreadyExistsError where some tenants would have two adapters of one name."""
        for each in self._by_name.get((key.model, key.name), ()):
            if each.shares and each.key.overlaps(key):
                raise AlreadyExistsError(
                    f"adapter {key.name!r} is registered for {who(each.key.tenants)}: to replace it name the same "
                    "tenants, to have another one beside it name others"
                )

    def _refuse_excess(self, key: AdapterKey, changes: Mapping[str, str | None]) -> None:
        documents = self._shelved.documents if self._shelved else {}
        if _id(key) not in documents and len(documents) - len(changes) >= MAX_REGISTRATIONS:
            raise FailedPreconditionError(
                f"{len(documents)} adapters are registered or were within the last week; at most {MAX_REGISTRATIONS} "
                "can be",
                reason="TOO_MANY_ADAPTERS",
            )


def who(tenants: frozenset[str]) -> str:
    names = sorted(tenants)
    return "all tenants" if not names else "tenants " + ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def _id(key: AdapterKey) -> str:
    return json.dumps([key.model, key.name, sorted(key.tenants)])


def _written(registration: Registration) -> str:
    key, previous = registration.key, registration.previous
    return json.dumps(
        {
            "model": key.model,
            "name": key.name,
            "tenants": sorted(key.tenants),
            "shares": [[*_weights_out(share.weights), share.percent] for share in registration.shares],
            "previous": None if previous is None else _weights_out(previous),
            "retired": [[each.revision, each.retired_at, each.grace_s] for each in registration.retired],
        }
    )


def _read(text: str) -> Registration:
    document: dict[str, Any] = json.loads(text)
    return Registration(
        AdapterKey(document["model"], document["name"], frozenset(document["tenants"])),
        tuple(Share(Weights(*fields), percent) for *fields, percent in document["shares"]),
        None if document["previous"] is None else Weights(*document["previous"]),
        tuple(Retired(*fields) for fields in document["retired"]),
    )


def _weights_out(weights: Weights) -> list[str | float]:
    return [weights.revision, weights.path, weights.registered_at]
