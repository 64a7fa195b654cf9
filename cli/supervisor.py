"""Runs a whole deployment on one machine: Redis, workers and a gateway as children, started and stopped in order.

Knows processes and addresses; what they serve is their business.
"""

import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from cli.child import Child, ChildDiedError
from cli.config import Tree, config_from, is_set, set_at
from cli.embedded_redis import EmbeddedRedis, EmbeddedRedisConfig
from cli.progress import CONNECTING
from cli.worker_children import WorkerChildren

_POLL_S = 0.05
_GATEWAY_STOP_EXTRA_S = 10.0
_SERVING_TIMEOUT_S = 60.0
_REGISTRY_URL = ("worker", "registry", "url")


class StoppedError(Exception):
    """Somebody asked us to end before everything was ready."""


class StopSignal:
    """SIGINT, SIGTERM and SIGHUP as a flag to wait for; a second one means: now."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.urgent = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = [signal.signal(number, self._on_signal) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def wait(self, timeout_s: float) -> bool:
        """Wait at most this long; return whether a signal has come."""
        return self._event.wait(timeout_s)

    def set(self) -> None:
        self._event.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.urgent = self._event.is_set()
        self._event.set()


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where a deployment serves, once ready."""

    grpc: str  # host:port of the gateway
    metrics: tuple[str, ...]  # URLs
    admin_token: str
    workers: tuple[str, ...]  # host:port of each, at least one
    http: str | None = None  # host:port of the gateway's OpenAI-compatible API; None: off


@dataclass(frozen=True, slots=True)
class Listener:
    """Who is told what the children say. Called from threads."""

    log: Callable[[str], None]
    progress: Callable[[str, float], None]


class Supervisor:
    """Starts children in the order of their needs and stops them in reverse. Use as a context manager.

    Invariant: after the context nothing that was started runs any more.
    """

    def __init__(
        self,
        tree: Tree,
        workers: Sequence[Tree],
        run_folder: Path,
        redis_folder: Path | None,
        stop: StopSignal,
        listener: Listener,
    ) -> None:
        """`workers` are the settings of each worker, at least one; `tree` those of everything else."""
        self._tree = deepcopy(tree)
        self._worker_trees = [deepcopy(each) for each in workers]
        self._run_folder = run_folder
        self._redis_folder = redis_folder
        self._stop = stop
        self._listener = listener
        self._config = config_from(tree)
        self._redis: EmbeddedRedis | None = None
        self._workers: WorkerChildren | None = None
        self._gateway: Child | None = None
        self._exit = ExitStack()
        self._serving = threading.Event()
        self.forced: list[str] = []  # children that did not end in time

    def start(self) -> Deployment:
        """Start everything; returns once the gateway serves.

        Raises ChildDiedError, StoppedError, or EmbeddedRedisError.
        """
        if self._config.redis.url is None:
            self._start_redis()
        workers = self._start_workers()
        addresses = tuple(worker["grpc"] for worker in workers)
        set_at(self._tree, ("gateway", "workers"), list(addresses))
        token = self._config.gateway.admin_token or secrets.token_urlsafe(24)
        set_at(self._tree, ("gateway", "admin_token"), token)
        drain_s = self._config.gateway.server.drain_s
        gateway = self._start_gateway(stop_timeout_s=drain_s + _GATEWAY_STOP_EXTRA_S)
        self._listener.progress(CONNECTING, 0.0)
        self._wait_until_serving()
        urls = (gateway["metrics"], *(worker["metrics"] for worker in workers))
        return Deployment(gateway["grpc"], tuple(url for url in urls if url), token, addresses, gateway["http"])

    def run(self) -> None:
        """Wait until asked to end. Raises ChildDiedError when a child ends before without which nothing goes on.

        A worker that dies while others serve is started again.
        """
        while not self._stop.wait(_POLL_S):
            self._check_children()
            if self._workers is not None:
                self._workers.check(time.monotonic())

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *reason: object) -> None:
        self._exit.close()

    def _start_redis(self) -> None:
        self._listener.progress("Starting Redis", 0.0)
        config = EmbeddedRedisConfig(data_dir=self._redis_folder, port=self._config.redis.port)
        self._redis = self._exit.enter_context(EmbeddedRedis.start(config))
        for tree in (self._tree, *self._worker_trees):
            set_at(tree, ("redis", "url"), self._redis.url)
        self._listener.progress("Starting Redis", 1.0)

    def _start_workers(self) -> list[dict[str, str]]:
        """Start all workers at once and return what each says when ready."""
        stage = "Starting the worker" if len(self._worker_trees) == 1 else "Starting the workers"
        self._listener.progress(stage, 0.0)
        if self._config.gateway.discovery.source == "redis":
            self._let_register()
        self._workers = WorkerChildren(self._worker_trees, self._run_folder, self._listener.log, self._progress)
        self._exit.callback(self._stop_workers, self._workers)
        while (ready := self._workers.ready()) is None:
            if self._stop.wait(_POLL_S):
                raise StoppedError
            self._check_children()
        self._listener.progress(stage, 1.0)
        return ready

    def _let_register(self) -> None:
        """The gateway looks for workers in Redis: have ours be there, where nothing else is set."""
        url = self._config.redis.url or (self._redis.url if self._redis is not None else None)
        for tree in self._worker_trees:
            if not is_set(tree, _REGISTRY_URL):
                set_at(tree, _REGISTRY_URL, url)

    def _start_gateway(self, stop_timeout_s: float) -> dict[str, Any]:
        """Start the gateway and return what it says when ready."""
        stage = "Starting the gateway"
        self._listener.progress(stage, 0.0)
        self._gateway = Child.start(
            "gateway",
            ["--progress-json"],
            self._tree,
            self._run_folder / "gateway.json",
            on_log=self._listener.log,
            on_progress=self._progress,
        )
        self._exit.callback(self._stop_child, self._gateway, stop_timeout_s)
        while (ready := self._gateway.ready()) is None:
            if self._stop.wait(_POLL_S):
                raise StoppedError
            self._check_children()
        self._listener.progress(stage, 1.0)
        return ready

    def _stop_workers(self, workers: WorkerChildren) -> None:
        workers.terminate()
        for child, timeout_s in workers.children():
            self._stop_child(child, timeout_s)

    def _stop_child(self, child: Child, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        child.terminate()
        while not child.wait(_POLL_S):
            if self._stop.urgent:
                child.kill()
            elif time.monotonic() > deadline:
                child.kill()
                self.forced.append(child.name)

    def _wait_until_serving(self) -> None:
        deadline = time.monotonic() + _SERVING_TIMEOUT_S
        while not self._serving.is_set():
            if self._stop.wait(_POLL_S):
                raise StoppedError
            self._check_children()
            if time.monotonic() > deadline:
                raise ChildDiedError(f"the gateway found no worker within {_SERVING_TIMEOUT_S:g} s")

    def _progress(self, stage: str, fraction: float) -> None:
        """Pass on what a child reports. The gateway, too, says itself when it serves: only it knows its own TLS."""
        if (stage, fraction) == (CONNECTING, 1.0):
            if self._serving.is_set():  # a worker has come back
                return
            self._serving.set()
        self._listener.progress(stage, fraction)

    def _check_children(self) -> None:
        if self._redis is not None and self._redis.returncode is not None:
            raise ChildDiedError(f"the Redis server ended with status {self._redis.returncode}")
        if self._gateway is not None and (death := self._gateway.death()):
            raise ChildDiedError(death)
