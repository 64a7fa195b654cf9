"""Snapshots of the cache for links that ask. Belongs to the event loop; the engine's thread answers."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from hicache.events import Snapshot
from radixgate.v1 import worker_pb2
from worker.rpc.cache_messages import snapshot_messages
from worker.rpc.links import Link, Links

_log = structlog.get_logger(__name__)


class SnapshotEngine(Protocol):
    """What is needed of the engine's thread."""

    def snapshot_cache(self, on_done: Callable[[Snapshot | None], None]) -> bool:
        """Return at once: False if it has stopped, and calls nobody.

        `on_done` is called where outputs and events are delivered, in order with them; with None if that failed.
        """
        ...


class Snapshots:
    """Asks for one at a time, for all who ask meanwhile: it holds whatever any of them was told, or was not, so far."""

    def __init__(self, engine: SnapshotEngine, links: Links) -> None:
        self._engine = engine
        self._links = links
        self._askers: list[Link] = []

    def ask(self, link: Link) -> None:
        """Tell a link's gateway all that the cache holds, as soon as that is known. Asking twice is asking once."""
        if link in self._askers:
            return
        self._askers.append(link)
        if len(self._askers) == 1:
            self._ask(asyncio.get_running_loop())

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        def on_done(snapshot: Snapshot | None) -> None:
            parts = [] if snapshot is None else snapshot_messages(snapshot)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._came, parts)

        if not self._engine.snapshot_cache(on_done):
            self._askers.clear()  # the worker ends, and so do their streams

    def _came(self, parts: Sequence[worker_pb2.CacheSnapshot]) -> None:
        askers, self._askers = self._askers, []
        if not parts:
            _log.error("the cache could not be asked what it holds", links=len(askers))
            return  # gateways ask again
        self._links.restart(askers, parts)
