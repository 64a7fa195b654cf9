"""Registered adapters, as operators see them."""

import re
from collections.abc import Iterable

from gateway.control.adapters import AdapterControl, AdapterPlace
from gateway.control.registrations import DEFAULT_GRACE_S, AdapterKey, Registration, Weights
from gateway.errors import InvalidRequestError, NotFoundError, Violation
from gateway.identity.idempotency import Idempotency
from gateway.policy import is_tenant_id
from gateway.rpc.admin_calls.messages import refuse, seconds_of, timestamp
from radixgate.v1 import admin_pb2

MAX_TENANTS = 1024
MAX_PATH_CHARS = 4096
MAX_GRACE_S = 3600.0

_NAME = re.compile(r"[a-z0-9_.-]{1,64}")
_NAME_FORM = "must be 1 to 64 characters out of lower-case letters, digits, -, _ and ."


class AdapterCalls:
    def __init__(self, control: AdapterControl, idempotency: Idempotency) -> None:
        self._control = control
        self._idempotency = idempotency

    async def register_adapter(self, request: admin_pb2.RegisterAdapterRequest) -> admin_pb2.RegisterAdapterResponse:
        return await self._idempotency.once("RegisterAdapter", request, lambda: self._register(request))

    async def _register(self, request: admin_pb2.RegisterAdapterRequest) -> admin_pb2.RegisterAdapterResponse:
        percent = request.traffic_percent if request.HasField("traffic_percent") else 100
        violations = _check_key(request.name, request.tenants)
        if not request.path:
            violations.append(Violation("path", "is required: the folder that PEFT saved the adapter to"))
        if len(request.path) > MAX_PATH_CHARS:
            told = f"has {len(request.path)} characters; at most {MAX_PATH_CHARS} are allowed"
            violations.append(Violation("path", told))
        if not 1 <= percent <= 100:
            violations.append(Violation("traffic_percent", f"is {percent}; must be 1 to 100"))
        refuse(violations)
        key = AdapterKey(self._control.model_name(request.model), request.name, frozenset(request.tenants))
        registered = await self._control.register(key, request.path, percent)
        return admin_pb2.RegisterAdapterResponse(adapter=self._message(registered))

    async def get_registered_adapter(
        self, request: admin_pb2.GetRegisteredAdapterRequest
    ) -> admin_pb2.GetRegisteredAdapterResponse:
        registered = await self._control.get(await self._key(request.model, request.name, request.tenants))
        return admin_pb2.GetRegisteredAdapterResponse(adapter=self._message(registered))

    async def list_registered_adapters(
        self, request: admin_pb2.ListRegisteredAdaptersRequest
    ) -> admin_pb2.ListRegisteredAdaptersResponse:
        registered = await self._control.all()
        return admin_pb2.ListRegisteredAdaptersResponse(adapters=[self._message(each) for each in registered])

    async def split_adapter_traffic(
        self, request: admin_pb2.SplitAdapterTrafficRequest
    ) -> admin_pb2.SplitAdapterTrafficResponse:
        percent = request.traffic_percent
        if not 0 <= percent <= 100:
            refuse([Violation("traffic_percent", f"is {percent}; must be 0 to 100")])
        key = await self._key(request.model, request.name, request.tenants)
        registered = await self._control.split(key, request.revision, percent)
        return admin_pb2.SplitAdapterTrafficResponse(adapter=self._message(registered))

    async def roll_back_adapter(self, request: admin_pb2.RollBackAdapterRequest) -> admin_pb2.RollBackAdapterResponse:
        key = await self._key(request.model, request.name, request.tenants)
        return admin_pb2.RollBackAdapterResponse(adapter=self._message(await self._control.roll_back(key)))

    async def unregister_adapter(
        self, request: admin_pb2.UnregisterAdapterRequest
    ) -> admin_pb2.UnregisterAdapterResponse:
        grace_s = seconds_of(request.grace) if request.HasField("grace") else DEFAULT_GRACE_S
        if grace_s is None or not 0 <= grace_s <= MAX_GRACE_S:
            raise InvalidRequestError([Violation("grace", f"must be a duration of 0 to {MAX_GRACE_S:g} s")])
        key = await self._key(request.model, request.name, request.tenants)
        failed = await self._control.unregister(key, grace_s)
        return admin_pb2.UnregisterAdapterResponse(failed_sequences=failed)

    async def _key(self, model: str, name: str, tenants: Iterable[str]) -> AdapterKey:
        """Return what is meant: a registered adapter, whether workers of its model are there or not."""
        wanted = frozenset(tenants)
        if model:
            return AdapterKey(model, name, wanted)
        named = [each.key for each in await self._control.all() if each.key.name == name]
        known = [key for key in named if key.tenants == wanted]
        if not known:
            raise NotFoundError("adapter", name, _for_others(name, named) if named else None)
        if len(known) > 1:
            models = ", ".join(key.model for key in known)
            refuse([Violation("model", f"is required where several models have the adapter: {models}")])
        return known[0]

    def _message(self, registration: Registration) -> admin_pb2.RegisteredAdapter:
        key, previous = registration.key, registration.previous
        return admin_pb2.RegisteredAdapter(
            name=key.name,
            model=key.model,
            tenants=sorted(key.tenants),
            revisions=[_revision(share.weights, share.percent) for share in registration.shares],
            previous=None if previous is None else _revision(previous, 0),
            placements=[_placement(place) for place in self._control.places(registration)],
        )


def _for_others(name: str, keys: Iterable[AdapterKey]) -> str:
    whose = "; or for ".join(sorted(", ".join(sorted(key.tenants)) or "all tenants" for key in keys))
    return f"adapter {name!r} does not exist for these tenants: it is registered for {whose}"


def _check_key(name: str, tenants: Iterable[str]) -> list[Violation]:
    violations = [] if _NAME.fullmatch(name) else [Violation("name", _NAME_FORM)]
    named = list(tenants)
    if len(named) > MAX_TENANTS:
        violations.append(Violation("tenants", f"has {len(named)} names; at most {MAX_TENANTS} are allowed"))
    violations.extend(
        Violation(f"tenants[{i}]", "is no tenant's id")
        for i, tenant_id in enumerate(named[:MAX_TENANTS])
        if not is_tenant_id(tenant_id)
    )
    return violations


def _revision(weights: Weights, percent: int) -> admin_pb2.AdapterRevision:
    return admin_pb2.AdapterRevision(
        revision=weights.revision,
        path=weights.path,
        traffic_percent=percent,
        register_time=timestamp(weights.registered_at),
    )


def _placement(place: AdapterPlace) -> admin_pb2.AdapterPlacement:
    return admin_pb2.AdapterPlacement(
        worker=place.worker, revision=place.revision, loaded=place.loaded, error=place.error
    )
