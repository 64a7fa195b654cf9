"""How busy the worker is, as gateways are told. Belongs to the event loop."""

from collections.abc import Callable

from radixgate.v1 import worker_pb2
from worker.engine.ports import Load
from worker.rpc.translate import load_message


class LoadBoard:
    """The latest load, and what the loop knows itself. `version` is another one whenever something has changed."""

    def __init__(self) -> None:
        self._load: Load | None = None
        self._draining = False
        self._stalled_s: Callable[[], float] = lambda: 0.0
        self.version = 0

    def watch(self, stalled_s: Callable[[], float]) -> None:
        """Ask, whenever a load is told, for how long nothing has moved."""
        self._stalled_s = stalled_s

    def put(self, load: Load) -> None:
        if load != self._load:
            self._load = load
            self.version += 1

    def drain(self) -> None:
        """From now on no further requests are taken."""
        self._draining = True
        self.version += 1

    def message(self, link_id: int) -> worker_pb2.WorkerLoad | None:
        """Return what a link is told now; None before the engine has said anything."""
        if self._load is None:
            return None
        return load_message(self._load, link_id, stalled_s=self._stalled_s(), draining=self._draining)
