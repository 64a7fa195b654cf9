"""Keeps the host copies of adapters, and brings them to places on the device beside the engine, on one thread."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import structlog

from worker.lora.weights import AdapterBank, AdapterWeights

_log = structlog.get_logger(__name__)


class LoadTicket:
    """An adapter on its way to a place."""

    def __init__(self, ending: "Future[None]") -> None:
        self._ending = ending

    @property
    def done(self) -> bool:
        return self._ending.done()

    @property
    def failed(self) -> bool:
        return self.done and (self._ending.cancelled() or self._ending.exception() is not None)


class AdapterLoader:
    """Implements the engine's AdapterSource over a bank.

    `add` may be called from any thread, the rest from the engine's. What is asked for is done in this order: a place
    that is cleared and given away again ends up with the later adapter. `on_done` is called when a load has ended, well
    or not, from the thread that does it.
    """

    def __init__(self, bank: AdapterBank, num_places: int, on_done: Callable[[], None]) -> None:
        self.num_places = num_places
        self._on_done = on_done
        self._bank = bank
        self._weights: dict[str, AdapterWeights] = {}  # by revision
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapters")

    def add(self, weights: AdapterWeights) -> None:
        """Keep an adapter on the host, from where it can be loaded. Adding it again changes nothing."""
        self._weights.setdefault(weights.revision, weights)

    def load(self, revision: str, place: int) -> LoadTicket:
        weights = self._weights.get(revision)  # held until it has arrived, whoever forgets it meanwhile
        ending = self._thread.submit(self._put, revision, place, weights)
        ending.add_done_callback(lambda _: self._on_done())  # the ticket is done by then
        return LoadTicket(ending)

    def forget(self, revision: str, place: int | None) -> None:
        self._weights.pop(revision, None)
        if place is not None:
            self._thread.submit(self._clear, place)

    def close(self) -> None:
        """Wait for what is on its way; nothing is to be asked for afterwards."""
        self._thread.shutdown(cancel_futures=True)

    def _put(self, revision: str, place: int, weights: AdapterWeights | None) -> None:
        try:
            if weights is None:
                raise LookupError(f"there are no weights of adapter {revision}")
            self._bank.put(place, weights)
        except Exception:
            _log.exception("an adapter could not be brought to the device", revision=revision, place=place)
            self._clear(place)
            raise

    def _clear(self, place: int) -> None:
        try:
            self._bank.clear(place)
        except Exception:  # noqa: BLE001 -- the outermost frame of this thread's work
            _log.exception("a place of adapters could not be cleared", place=place)
