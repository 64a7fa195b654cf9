"""What operators do with adapters: register, move traffic, go back, unregister. Raises GatewayError."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import grpc
import structlog

from gateway.control.keeping import Keeper, reported_under, take_back
from gateway.control.registrations import AdapterKey, Registration, Weights
from gateway.control.registry import AdapterRegistry
from gateway.control.undertakings import Undertakings
from gateway.control.workers import WorkerAwayError, WorkerRefusedError, load_adapter, unload_adapter
from gateway.dispatch.fleet import Fleet
from gateway.dispatch.link import WorkerLink
from gateway.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    GatewayError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
    Violation,
)

_log = structlog.get_logger(__name__)

# Until every gateway has heard of a change: two looks at the counter of changes, and a moment.
HEARD_S: Final = 0.6


@dataclass(frozen=True, slots=True)
class AdapterPlace:
    """Whether a worker has a revision, and why not."""

    worker: str
    revision: str
    loaded: bool
    error: str = ""


class AdapterControl:
    """Speaks to the workers of this gateway, and writes to the registry that all gateways follow."""

    def __init__(
        self, fleet: Fleet, registry: AdapterRegistry, keepers: Mapping[str, Keeper], undertakings: Undertakings
    ) -> None:
        """`keepers` by the worker's address."""
        self._fleet = fleet
        self._registry = registry
        self._keepers = keepers
        self._undertakings = undertakings

    # ------------------------------------------------------------------------------------------------------ reading

    async def all(self) -> list[Registration]:
        await self._registry.refresh()
        return [each for each in self._registry.all() if each.shares]

    async def get(self, key: AdapterKey) -> Registration:
        """Raises NotFoundError."""
        await self._registry.refresh()
        return self._existing(key)

    def places(self, registration: Registration) -> list[AdapterPlace]:
        """Return where the adapter is, and is not: each of its revisions on each worker of the model."""
        key = registration.key
        return [
            self._place(link, key, share.weights.revision)
            for link in self._fleet.links()
            if (link.model.name if link.model else link.last_model) == key.model
            for share in registration.shares
        ]

    def model_name(self, name: str) -> str:
        """Return the name of the model that an operator means. Raises like Fleet.model."""
        return self._fleet.model(name).name

    # ----------------------------------------------------------------------------------------------------- changing

    async def register(self, key: AdapterKey, path: str, percent: int) -> Registration:
        """Have the workers load weights, and give them traffic. Where any of them refuses nothing changes.

        Raises what workers refuse with, FailedPreconditionError, AlreadyExistsError, UnavailableError.
        """
        return await self._undertakings.to_its_end(self._register(key, path, percent))

    async def split(self, key: AdapterKey, revision: str, percent: int) -> Registration:
        """Raises NotFoundError, InvalidRequestError, FailedPreconditionError."""
        now = time.time()
        after = await self._registry.change(key, lambda before: _known(before).split(revision, percent, now), now)
        self._wake()
        return after

    async def roll_back(self, key: AdapterKey) -> Registration:
        """Have the workers load what had the traffic before, and give it all of that.

        Raises NotFoundError, FailedPreconditionError: also where its folder holds other weights by now.
        """
        return await self._undertakings.to_its_end(self._roll_back(key))

    async def unregister(self, key: AdapterKey, grace_s: float) -> int:
        """Take the adapter away, and return how many sequences failed for that. Raises NotFoundError."""
        return await self._undertakings.to_its_end(self._unregister(key, grace_s))

    async def _register(self, key: AdapterKey, path: str, percent: int) -> Registration:
        await self._registry.refresh()
        self._registry.refuse_overlap(key)
        before = self._registry.get(key)
        if before is not None:
            before.may_add(path)
        if percent != 100 and (before is None or not before.shares):
            told = f"is {percent}; the first revision of an adapter has all of its traffic"
            raise InvalidRequestError([Violation("traffic_percent", told)])
        async with _Loading(self._fleet, self._registry, key) as loading:
            revision = await loading.load_everywhere(path)
            now = time.time()
            weights = Weights(revision, path, now)
            after = await self._registry.change(key, lambda known: known.with_weights(weights, percent, now), now)
        self._wake()
        _log.info("adapter registered", adapter=key.name, model=key.model, revision=revision, percent=percent)
        return after

    async def _roll_back(self, key: AdapterKey) -> Registration:
        await self._registry.refresh()
        target = self._existing(key).back_to()
        async with _Loading(self._fleet, self._registry, key) as loading:
            revision = await loading.load_everywhere(target.path)
            if revision != target.revision:
                raise FailedPreconditionError(
                    f"{target.path} holds other weights by now, of revision {revision}: revision {target.revision} "
                    "cannot be had again",
                    reason="WEIGHTS_CHANGED",
                )
            now = time.time()

            def decide(known: Registration) -> Registration:
                if _known(known).back_to().revision != target.revision:
                    raise FailedPreconditionError("the adapter was changed meanwhile", reason="CHANGED_MEANWHILE")
                return known.rolled_back(now)

            after = await self._registry.change(key, decide, now)
        self._wake()
        _log.info("adapter rolled back", adapter=key.name, model=key.model, revision=target.revision)
        return after

    async def _unregister(self, key: AdapterKey, grace_s: float) -> int:
        now = time.time()
        gone = await self._registry.change(key, lambda before: _known(before).unregistered(now, grace_s), now)
        self._wake()
        await asyncio.sleep(HEARD_S)
        links = [link for link in self._fleet.links() if link.model is not None and link.model.name == key.model]
        calls = [
            unload_adapter(link, key, retired.revision, grace_s)
            for link in links
            for retired in gone.retired
            if retired.revision in {each.revision for each in reported_under(link, key)}
        ]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for outcome in outcomes:  # keepers try again
            if isinstance(outcome, WorkerAwayError | WorkerRefusedError):
                _log.warning("adapter not unloaded", adapter=key.name, reason=str(outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
        _log.info("adapter unregistered", adapter=key.name, model=key.model)
        return sum(outcome for outcome in outcomes if isinstance(outcome, int))

    # ------------------------------------------------------------------------------------------------------- shared

    def _existing(self, key: AdapterKey) -> Registration:
        return _known(self._registry.get(key) or Registration(key))

    def _place(self, link: WorkerLink, key: AdapterKey, revision: str) -> AdapterPlace:
        if link.model is None:
            return AdapterPlace(link.address, revision, loaded=False, error="not connected")
        if any(each.revision == revision for each in reported_under(link, key)):
            return AdapterPlace(link.address, revision, loaded=True)
        keeper = self._keepers.get(link.address)
        return AdapterPlace(link.address, revision, loaded=False, error=keeper.error(key, revision) if keeper else "")

    def _wake(self) -> None:
        for keeper in self._keepers.values():
            keeper.wake()


class _Loading:
    """Weights on their way to all workers of a model. Leaving with an error takes back what was not there before."""

    def __init__(self, fleet: Fleet, registry: AdapterRegistry, key: AdapterKey) -> None:
        self._fleet = fleet
        self._registry = registry
        self._key = key
        self._loaded: list[tuple[WorkerLink, str]] = []  # what was not there before

    async def __aenter__(self) -> "_Loading":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if error is not None:
            await asyncio.gather(
                *(take_back(link, self._registry, self._key, revision) for link, revision in self._loaded)
            )

    async def load_everywhere(self, path: str) -> str:
        """Return the revision that all workers have found in the folder."""
        links = self._fleet.up(self._key.model)
        if not links:
            raise UnavailableError(
                f"no worker that serves model {self._key.model!r} is connected at the moment",
                reason="NO_WORKER",
                retry_after_s=self._fleet.next_attempt_in_s(),
            )
        outcomes = await asyncio.gather(*(self._load(link, path) for link in links), return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if errors:
            raise _first_of(errors)
        revisions = {str(outcome): link.address for outcome, link in zip(outcomes, links, strict=True)}
        if len(revisions) > 1:
            found = ", ".join(f"{revision} on {worker}" for revision, worker in sorted(revisions.items()))
            raise FailedPreconditionError(
                f"the workers find different weights at {path}: {found}", reason="WEIGHTS_DIFFER"
            )
        return next(iter(revisions))

    async def _load(self, link: WorkerLink, path: str) -> str:
        had = {each.revision for each in reported_under(link, self._key)}
        adapter = await load_adapter(link, self._key, path)
        if adapter.revision not in had:
            self._loaded.append((link, adapter.revision))
        return adapter.revision


def _known(registration: Registration) -> Registration:
    if not registration.shares:
        raise NotFoundError("adapter", registration.key.name)
    return registration


def _first_of(errors: Sequence[BaseException]) -> BaseException:
    """Return what the operator is told: what a worker refuses goes before one that is away."""
    refused = next((error for error in errors if isinstance(error, WorkerRefusedError)), None)
    if refused is not None:
        return _refusal(refused)
    away = next((error for error in errors if isinstance(error, WorkerAwayError)), None)
    if away is not None:
        return UnavailableError(
            f"{away}; nothing was changed", reason="WORKER_LOST", retry_after_s=1.0, metadata={"worker": away.worker}
        )
    return errors[0]


def _refusal(refused: WorkerRefusedError) -> GatewayError:
    if refused.violations:
        return InvalidRequestError(
            [Violation(each.field, f"{each.description} (worker {refused.worker})") for each in refused.violations]
        )
    if refused.code is grpc.StatusCode.ALREADY_EXISTS:
        return AlreadyExistsError(str(refused))
    if refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return OverloadedError(str(refused), reason="WORKER_FULL")
    return FailedPreconditionError(str(refused), reason="WORKER_REFUSED")
