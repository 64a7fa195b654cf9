"""Makes the fleet follow the registry: looks who is registered, and has links made and dropped."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from gateway.config import DiscoveryConfig
from gateway.dispatch.fleet import Fleet
from gateway.dispatch.registrations import Registered, Registrations
from gateway.dispatch.roster import Changes, LinkState, Roster
from gateway.errors import UnavailableError

_log = structlog.get_logger(__name__)

_MOST_JOINS: Final = 500  # of one look: the loop has other things to do


class DiscoveryObserver(Protocol):
    def workers_registered(self, workers: int, ignored: int) -> None:
        """So many workers are registered, beside so many entries that are none."""
        ...

    def worker_joined(self, worker: str) -> None:
        """A worker was found: there is a link to it from now on."""
        ...

    def worker_left(self, worker: str) -> None:
        """The link to a worker is gone for good."""
        ...


class Discovery:
    """Belongs to the event loop. Links that others have put into the fleet are not its own, and stay."""

    def __init__(
        self,
        fleet: Fleet,
        registrations: Registrations,
        config: DiscoveryConfig,
        observer: DiscoveryObserver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._registrations = registrations
        self._poll_s = config.poll_s
        self._observer = observer
        self._clock = clock
        self._roster = Roster(config.forget_s)
        self._fixed = frozenset(link.address for link in fleet.links())
        self._registered: Registered | None = None

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - it goes on, whatever one look came to
                _log.error("workers not looked for", error=type(error).__name__, detail=str(error)[:200])
            await asyncio.sleep(self._poll_s)

    async def look(self) -> None:
        """Read the registry once, and do what follows from it."""
        changes = await self._changes()
        for address in changes.join[:_MOST_JOINS]:
            self._fleet.add(address)
            self._observer.worker_joined(address)
            _log.info("worker found", worker=address)
        self._fleet.retire(changes.retire)
        for address in changes.drop:
            await self._fleet.drop(address)
            self._observer.worker_left(address)
            _log.info("worker forgotten", worker=address)

    async def _changes(self) -> Changes:
        try:
            registered = await self._registrations.read()
        except UnavailableError:
            return self._roster.unknown()
        if registered is not self._registered:
            self._registered = registered
            self._observer.workers_registered(len(registered.workers), registered.num_ignored)
        addresses = {
            worker.worker_id: worker.address
            for worker in registered.workers.values()
            if worker.address not in self._fixed
        }
        links = [
            LinkState(link.address, link.model is not None, link.in_flight)
            for link in self._fleet.links()
            if link.address not in self._fixed
        ]
        return self._roster.changes(addresses, links, self._clock())
