"""The workers of a deployment on one machine, as child processes: one that dies is started again while others serve."""

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cli.child import Child, ChildDiedError
from cli.config import Tree, config_from, set_at

_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 30.0
_HEALTHY_S: Final = 60.0  # who has served for so long begins anew with its back-off


@dataclass(slots=True)
class _Worker:
    """One worker, through all of its processes."""

    name: str
    tree: Tree
    ready_file: Path
    child: Child
    stop_timeout_s: float
    ready: dict[str, str] | None = None  # of the process that runs now
    ready_at: float = 0.0
    deaths: int = 0  # since it was healthy
    again_at: float | None = None  # None: its process runs


class WorkerChildren:
    """Owns the processes. Invariant: of each worker at most one runs."""

    def __init__(
        self,
        trees: Sequence[Tree],
        run_folder: Path,
        on_log: Callable[[str], None],
        on_progress: Callable[[str, float], None],
    ) -> None:
        self._run_folder = run_folder
        self._on_log = on_log
        self._on_progress = on_progress
        self._workers = [self._first(tree, len(trees)) for tree in trees]

    def ready(self) -> list[dict[str, str]] | None:
        """Return what each said when it was ready; None until all are.

        Raises ChildDiedError for one that has died: what does not start once, does not start the next time.
        """
        for worker in self._workers:
            self._look(worker)
            if worker.ready is None and (death := worker.child.death()):
                raise ChildDiedError(death)
        told = [worker.ready for worker in self._workers if worker.ready is not None]
        return told if len(told) == len(self._workers) else None

    @property
    def num_ready(self) -> int:
        return sum(worker.ready is not None for worker in self._workers)

    def check(self, now: float) -> None:
        """Start again who has died. Raises ChildDiedError where nobody serves any more."""
        for worker in self._workers:
            if worker.again_at is not None:
                if now >= worker.again_at:
                    worker.again_at = None
                    worker.child = self._start(worker.name, worker.tree, worker.ready_file)
            elif death := worker.child.death():
                self._died(worker, death, now)
            elif self._look(worker):
                self._on_log(f"the {worker.name} serves again")

    def terminate(self) -> None:
        """Ask all to end."""
        for worker in self._workers:
            worker.child.terminate()

    def children(self) -> list[tuple[Child, float]]:
        """Return the processes, and how long each may take to end."""
        return [(worker.child, worker.stop_timeout_s) for worker in self._workers]

    def _first(self, tree: Tree, num_workers: int) -> _Worker:
        config = config_from(tree).worker
        name = "worker" if num_workers == 1 else f"worker {config.worker_id}"
        ready_file = self._run_folder / f"{name.replace(' ', '-').replace('/', '_')}.json"
        child = self._start(name, tree, ready_file)
        return _Worker(name, deepcopy(tree), ready_file, child, stop_timeout_s=config.drain_s + 10.0)

    def _start(self, name: str, tree: Tree, ready_file: Path) -> Child:
        arguments = ["--progress-json"]
        return Child.start(
            "worker", arguments, tree, ready_file, label=name, on_log=self._on_log, on_progress=self._on_progress
        )

    def _look(self, worker: _Worker) -> bool:
        """Return whether the worker has become ready since the last look."""
        if worker.ready is not None or (told := worker.child.ready()) is None:
            return False
        worker.ready, worker.ready_at = told, time.monotonic()
        # It is found where it was, should it have to be started again.
        set_at(worker.tree, ("worker", "listen"), told["grpc"])
        set_at(worker.tree, ("worker", "metrics_listen"), urlsplit(told["metrics"]).netloc)
        return True

    def _died(self, worker: _Worker, death: str, now: float) -> None:
        if worker.ready is not None and now - worker.ready_at > _HEALTHY_S:
            worker.deaths = 0
        worker.ready = None
        worker.ready_file.unlink(missing_ok=True)
        if self.num_ready == 0:
            raise ChildDiedError(death)
        delay_s = min(_MAX_BACKOFF_S, _BACKOFF_S * 2.0 ** min(worker.deaths, 10))
        worker.deaths += 1
        worker.again_at = now + delay_s
        self._on_log(
            f"{death}; {self.num_ready} of {len(self._workers)} workers serve, and it starts again in {delay_s:g} s"
        )
