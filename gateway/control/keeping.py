"""Brings one worker to what is registered: loads what it lacks, takes away what was registered once.

What it was configured with, or was given by hand, is left alone. Several gateways do this at the same time: loading
twice changes nothing, and nothing is taken away before every gateway has heard that it gets no requests.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from gateway.control.registrations import AdapterKey, Registration, Retired, Weights
from gateway.control.registry import AdapterRegistry
from gateway.control.workers import WorkerAwayError, WorkerRefusedError, load_adapter, unload_adapter
from gateway.dispatch.adapters import ReportedAdapter
from gateway.dispatch.link import WorkerLink

_log = structlog.get_logger(__name__)

LOOK_AGAIN_S: Final = 30.0
SETTLE_S: Final = 1.0  # from when a gateway hears that weights are retired until it takes them from workers
_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 60.0

Placed = tuple[AdapterKey, str]  # an adapter's revision, on one worker


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to be done about one worker."""

    loads: tuple[tuple[AdapterKey, Weights], ...]
    unloads: tuple[tuple[AdapterKey, Retired], ...]


def plan(registrations: Iterable[Registration], model: str, reported: Sequence[ReportedAdapter]) -> Plan:
    """Compare what is wanted of the workers of a model with what one of them says it has."""
    has: dict[tuple[str, frozenset[str]], dict[str, int]] = defaultdict(dict)
    for each in reported:
        has[each.name, each.tenants][each.revision] = each.load_time[0]
    loads: list[tuple[AdapterKey, Weights]] = []
    unloads: list[tuple[AdapterKey, Retired]] = []
    for registration in registrations:
        key = registration.key
        if key.model != model:
            continue
        named = has[key.name, key.tenants]
        loads.extend((key, share.weights) for share in registration.shares if share.weights.revision not in named)
        for retired in registration.retired:
            loaded_at = named.get(retired.revision)
            if loaded_at is not None and retired.covers(retired.revision, loaded_at):
                unloads.append((key, retired))
    return Plan(tuple(loads), tuple(unloads))


def reported_under(link: WorkerLink, key: AdapterKey) -> list[ReportedAdapter]:
    """Return what a worker has under the same name, for the same tenants."""
    return [each for each in link.adapters.all() if (each.name, each.tenants) == (key.name, key.tenants)]


async def take_back(link: WorkerLink, registry: AdapterRegistry, key: AdapterKey, revision: str) -> None:
    """Unload what a worker was given in vain, unless it is wanted meanwhile."""
    registration = registry.get(key)
    if registration is not None and registration.share_of(revision) is not None:
        return
    try:
        await unload_adapter(link, key, revision, grace_s=0.0)
    except (WorkerAwayError, WorkerRefusedError) as error:
        _log.warning("adapter not taken back", worker=link.address, adapter=key.name, reason=error.detail)


@dataclass(slots=True)
class _Failure:
    message: str
    times: int
    again_at: float


class Keeper:
    """Keeps one worker. Owns what it has begun there, from `run` until that is cancelled."""

    def __init__(self, link: WorkerLink, registry: AdapterRegistry) -> None:
        self._link = link
        self._registry = registry
        self._woken = asyncio.Event()
        self._failures: dict[Placed, _Failure] = {}
        self._retired_since: dict[Placed, float] = {}
        self._leaving: dict[Placed, asyncio.Task[None]] = {}

    def wake(self) -> None:
        """Something has changed: the worker, or what is wanted of it."""
        self._woken.set()

    def error(self, key: AdapterKey, revision: str) -> str:
        """Return why the worker has no such revision, as far as that is known."""
        failure = self._failures.get((key, revision))
        return failure.message if failure is not None else ""

    def pending(self) -> Plan:
        """Return what the worker lacks and has too much of now; nothing while it is away. From any thread."""
        model = self._link.model
        if model is None:
            return Plan((), ())
        return plan(self._registry.all(), model.name, self._link.adapters.all())

    async def run(self) -> None:
        """Look whenever woken, and now and then, until cancelled."""
        try:
            while True:
                self._woken.clear()
                try:
                    wait_s = await self._look()
                except Exception as error:  # noqa: BLE001 - it goes on, whatever one look came to
                    _log.error("worker not looked after", worker=self._link.address, error=type(error).__name__)
                    wait_s = LOOK_AGAIN_S
                try:
                    async with asyncio.timeout(wait_s):
                        await self._woken.wait()
                except TimeoutError:
                    pass
        finally:
            for leaving in self._leaving.values():
                leaving.cancel()

    async def _look(self) -> float:
        """Do what is due, and return the time until there may be more."""
        if self._link.model is None:
            self._failures.clear()  # a new connection is a new beginning
            return LOOK_AGAIN_S
        wanted = plan(self._registry.all(), self._link.model.name, self._link.adapters.all())
        placed = {(key, weights.revision) for key, weights in wanted.loads}
        self._failures = {each: failure for each, failure in self._failures.items() if each in placed}
        for key, weights in wanted.loads:
            await self._load(key, weights)
        return min(LOOK_AGAIN_S, self._take_away(wanted.unloads), self._until_again())

    def _until_again(self) -> float:
        now = time.monotonic()
        return min((max(0.0, failure.again_at - now) for failure in self._failures.values()), default=LOOK_AGAIN_S)

    # ----------------------------------------------------------------------------------------------------- loading

    async def _load(self, key: AdapterKey, weights: Weights) -> None:
        placed = (key, weights.revision)
        failure = self._failures.get(placed)
        if failure is not None and failure.again_at > time.monotonic():
            return
        had = {each.revision for each in reported_under(self._link, key)}
        try:
            adapter = await load_adapter(self._link, key, weights.path)
        except (WorkerAwayError, WorkerRefusedError) as error:
            self._failed(placed, error.detail)
            return
        if adapter.revision == weights.revision:
            self._failures.pop(placed, None)
            return
        self._failed(placed, f"{weights.path} holds other weights by now, of revision {adapter.revision}")
        if adapter.revision not in had:
            await take_back(self._link, self._registry, key, adapter.revision)

    def _failed(self, placed: Placed, message: str) -> None:
        key, revision = placed
        before = self._failures.get(placed)
        times = 1 if before is None else before.times + 1
        delay = min(_MAX_BACKOFF_S, _BACKOFF_S * 2.0 ** (min(times, 20) - 1))
        self._failures[placed] = _Failure(message, times, time.monotonic() + delay)
        _log.warning(
            "adapter not loaded", worker=self._link.address, adapter=key.name, revision=revision, reason=message,
            retry_in_s=delay,
        )  # fmt: skip

    # ----------------------------------------------------------------------------------------------------- leaving

    def _take_away(self, unloads: Sequence[tuple[AdapterKey, Retired]]) -> float:
        """Begin to take away what has been retired for long enough; return the time until there is more to do."""
        now, wait_s = time.monotonic(), LOOK_AGAIN_S
        retired = {(key, each.revision): each for key, each in unloads}
        self._retired_since = {placed: self._retired_since.get(placed, now) for placed in retired}
        for placed, each in retired.items():
            due_in_s = self._retired_since[placed] + SETTLE_S - now
            if due_in_s > 0:
                wait_s = min(wait_s, due_in_s)
            elif placed not in self._leaving:
                leaving = asyncio.create_task(self._unload(placed[0], each))
                self._leaving[placed] = leaving
                leaving.add_done_callback(lambda _, placed=placed: self._leaving.pop(placed))  # type: ignore[misc]
        return wait_s

    async def _unload(self, key: AdapterKey, retired: Retired) -> None:
        try:
            failed = await unload_adapter(self._link, key, retired.revision, retired.grace_s)
        except (WorkerAwayError, WorkerRefusedError) as error:
            _log.warning("adapter not unloaded", worker=self._link.address, adapter=key.name, reason=error.detail)
            return
        _log.info(
            "adapter unloaded", worker=self._link.address, adapter=key.name, revision=retired.revision,
            failed_sequences=failed,
        )  # fmt: skip
