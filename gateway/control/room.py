"""The control room of one gateway: everything that operators want of workers, and the tasks that see to it."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from redis.asyncio import Redis

from gateway.control.adapters import AdapterControl
from gateway.control.cache import CacheControl
from gateway.control.directory import RegisteredAdapters
from gateway.control.keeping import Keeper
from gateway.control.namespaces import UsedNamespaces
from gateway.control.prefixes import PrefixControl, PrefixShelf
from gateway.control.purges import Purges
from gateway.control.registry import AdapterRegistry
from gateway.control.shelf import Shelf
from gateway.control.undertakings import Undertakings
from gateway.dispatch.fleet import Fleet
from gateway.dispatch.link import WorkerLink
from gateway.errors import UnavailableError
from gateway.identity.changes import ChangeWatch
from gateway.identity.extra_keys import ExtraKeys
from gateway.identity.reach import StoreReach

_log = structlog.get_logger(__name__)

_CATCH_UP_AGAIN_S: Final = 30.0


class ControlRoom:
    """Puts its parts together. `run` is their one task."""

    def __init__(
        self, fleet: Fleet, client: Redis, reach: StoreReach, changes: ChangeWatch, extra_keys: ExtraKeys
    ) -> None:
        self._fleet = fleet
        self._undertakings = Undertakings()
        self._registry = AdapterRegistry(Shelf(client, reach, "adapters"))
        self._keepers: dict[str, Keeper] = {}  # by address, as are the next two
        self._returned: dict[str, asyncio.Event] = {}
        self._watches: dict[str, list[asyncio.Task[None]]] = {}
        self._group: asyncio.TaskGroup | None = None  # while `run` runs
        self._purges = Purges(fleet, client, reach)
        self.directory = RegisteredAdapters(self._registry, fleet)
        self.prefixes = PrefixShelf(client, reach)
        self.namespaces = UsedNamespaces(client, reach)
        self.adapter_control = AdapterControl(fleet, self._registry, self._keepers, self._undertakings)
        self.prefix_control = PrefixControl(self.prefixes, self.directory, extra_keys, self._purges, self._undertakings)
        self.cache_control = CacheControl(fleet, self.namespaces, self._purges, self._undertakings)
        changes.when_changed(self._refresh)
        reach.when_back(self.namespaces.when_back)
        reach.when_back(self.workers_changed)
        for link in fleet.links():
            self.joined(link)
        fleet.watch(self)

    def joined(self, link: WorkerLink) -> None:
        """There is another worker: it gets what is registered, and what was purged while it was away."""
        self._keepers[link.address] = Keeper(link, self._registry)
        self._returned[link.address] = asyncio.Event()
        self._look_after(link)

    def left(self, address: str) -> None:
        """A worker is gone for good."""
        for task in self._watches.pop(address, ()):
            task.cancel()
        self._keepers.pop(address, None)
        self._returned.pop(address, None)
        self._purges.forget(address)

    def workers_changed(self) -> None:
        """A worker has come or gone."""
        for address, keeper in self._keepers.items():
            keeper.wake()
            self._returned[address].set()

    def pending(self) -> Mapping[str, Callable[[], int]]:
        """Return what says, by kind, how much of what operators asked for is not brought about. From any thread."""
        keepers = self._keepers
        return {
            "call": lambda: len(self._undertakings),
            "adapter_load": lambda: sum(len(keeper.pending().loads) for keeper in keepers.copy().values()),
            "adapter_unload": lambda: sum(len(keeper.pending().unloads) for keeper in keepers.copy().values()),
            "purge": lambda: self._purges.num_waiting,
        }

    async def run(self) -> None:
        """See to everything until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._group = tasks
                tasks.create_task(self.namespaces.run())
                for link in self._fleet.links():
                    self._look_after(link)
        finally:
            self._group = None
            await self._undertakings.close()

    def _look_after(self, link: WorkerLink) -> None:
        """Begin the tasks of one worker, once there is somebody to own them."""
        if self._group is None:
            return
        self._watches[link.address] = [
            self._group.create_task(self._keepers[link.address].run()),
            self._group.create_task(self._catch_up(link, self._returned[link.address])),
        ]

    async def _refresh(self) -> None:
        await self._registry.refresh()
        await self.prefixes.refresh()
        for keeper in self._keepers.values():
            keeper.wake()

    async def _catch_up(self, link: WorkerLink, returned: asyncio.Event) -> None:
        while True:
            returned.clear()
            try:
                await self._purges.catch_up(link)
            except UnavailableError:
                pass  # woken when Redis is back
            except Exception as error:  # noqa: BLE001 - it goes on, whatever went wrong this time
                _log.error("purges not caught up", worker=link.address, error=type(error).__name__)
            try:
                async with asyncio.timeout(_CATCH_UP_AGAIN_S):
                    await returned.wait()
            except TimeoutError:
                continue
