"""A fleet of real processes on this machine: a Redis server, workers, gateways. Each keeps its address over restarts.

Everything ends with whoever started it, however that ends. Start and restart members from a thread that stays.
"""

import json
import secrets
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cli.admin_client import AdminClient, admin_client
from cli.child import Child
from cli.config import Tree, read_tree, set_at
from cli.embedded_redis import EmbeddedRedis

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
_POLL_S = 0.01
_LOOPBACK = "127.0.0.1:0"

Labels = Mapping[str, str]


class Member:
    """One process, which takes a free port when it first starts and the same one ever after."""

    def __init__(self, command: str, name: str, arguments: Sequence[str], settings: Tree, folder: Path) -> None:
        self.name = name
        self._command = command
        self._arguments = tuple(arguments)
        self._settings = deepcopy(settings)
        self._ready_file = folder / f"{name}.json"
        self._log = folder / f"{name}.log"
        self._child: Child | None = None
        self.address = ""  # host:port, from the first time that it is ready
        self.metrics = ""  # URL, as of the last time
        for path in ((command, "listen"), (command, "metrics_listen")):
            set_at(self._settings, path, _LOOPBACK)

    def configure(self, path: Sequence[str], value: object) -> None:
        """Set something from the next start on."""
        set_at(self._settings, path, value)

    def start(self) -> None:
        """Start the process and return at once. One that has died starts anew."""
        assert not self.runs, f"{self.name} runs already"
        self._ready_file.unlink(missing_ok=True)
        self._child = Child.start(
            self._command, self._arguments, self._settings, self._ready_file,
            on_log=self._write, on_progress=lambda stage, fraction: None,
        )  # fmt: skip

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Raises RuntimeError for one that ends instead, TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while (ready := self._running.ready()) is None:
            if (death := self._running.death()) is not None:
                raise RuntimeError(f"{death}; its last lines:\n{self.last_words()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} was not ready within {timeout_s:g} s:\n{self.last_words()}")
            time.sleep(_POLL_S)
        self.address, self.metrics = ready["grpc"], ready["metrics"]
        self.configure((self._command, "listen"), self.address)

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def runs(self) -> bool:
        return self._child is not None and self._child.death() is None

    def kill(self) -> None:
        """SIGKILL: it is gone at once."""
        self._running.kill()
        self._child = None

    def freeze(self) -> None:
        """SIGSTOP: its connections stay, and it does nothing."""
        psutil.Process(self.pid).send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        psutil.Process(self.pid).send_signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        """SIGTERM: it drains."""
        self._running.terminate()

    def wait_until_gone(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Raises TimeoutError, having killed it, where it does not end by itself."""
        child = self._running
        if not child.wait(timeout_s):
            self.kill()
            raise TimeoutError(f"{self.name} did not end within {timeout_s:g} s:\n{self.last_words()}")
        self._child = None

    def end(self) -> None:
        """End it whatever its state. Ending twice is harmless."""
        if self._child is None:
            return
        if self.runs:
            self.thaw()
        self.ask_to_end()
        self.wait_until_gone()

    def cpu_s(self) -> float:
        """Return the processor time that it has used since its start."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def memory_mb(self) -> float:
        return float(psutil.Process(self.pid).memory_info().rss / 2**20)

    def page(self) -> str:
        """Return all its metrics, as Prometheus reads them."""
        with urllib.request.urlopen(self.metrics, timeout=30) as response:
            text: str = response.read().decode()
            return text

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that carry `labels`."""
        return total_of(self.page(), name, **labels)

    def says(self, path: str) -> bool:
        """Whether a check beside the metrics, as /readyz, says yes."""
        try:
            with urllib.request.urlopen(self.metrics.replace("/metrics", path), timeout=10) as response:
                return bool(response.status == 200)
        except urllib.error.URLError:
            return False

    def log_lines(self) -> list[dict[str, object]]:
        """Return what it has logged, those lines that are JSON."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def last_words(self, num_lines: int = 15) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-num_lines:]) if self._log.exists() else ""

    @property
    def _running(self) -> Child:
        assert self._child is not None, f"{self.name} does not run"
        return self._child

    def _write(self, line: str) -> None:
        with self._log.open("a") as log:
            log.write(line + "\n")


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running fleet."""

    redis: EmbeddedRedis
    workers: tuple[Member, ...]
    gateways: tuple[Member, ...]
    admin_token: str

    @contextmanager
    def admin(self) -> Iterator[AdminClient]:
        """Provide the operator's side of the first gateway that runs."""
        gateway = next(gateway for gateway in self.gateways if gateway.runs)
        with admin_client(gateway.address, self.admin_token) as client:
            yield client

    def make_tenant(self, name: str) -> str:
        """Make a tenant, unless there is one, and return a new key of it."""
        with self.admin() as client:
            client.ensure_tenant(name)
            return client.create_key(name)[1]

    def wait_until_connected(self, num_workers: int | None = None, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every gateway that runs has so many workers, by default all."""
        wanted = len(self.workers) if num_workers is None else num_workers
        _wait(
            lambda: all(
                gateway.total("radixgate_gateway_worker_connected") == wanted
                for gateway in self.gateways
                if gateway.runs
            ),
            timeout_s,
            f"{wanted} workers connected",
        )

    def worker_totals(self, name: str, **labels: str) -> list[float]:
        """Return the total of a metric at each worker that runs."""
        return [worker.total(name, **labels) for worker in self.workers if worker.runs]


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What a fleet consists of. Settings read A.B=VALUE, as for `--set`."""

    num_workers: int = 2
    num_gateways: int = 1
    settings: Sequence[str] = ()  # of everybody
    of_worker: Mapping[int, Sequence[str]] = field(default_factory=dict)  # of single ones
    simulate: bool = True
    registered: bool = False  # workers make themselves known in Redis; otherwise gateways are told their addresses


@contextmanager
def running_fleet(folder: Path, plan: FleetPlan | None = None) -> Iterator[Fleet]:
    """Run a fleet until the block ends. Its logs are in `folder`."""
    plan = plan or FleetPlan()
    with ExitStack() as stack:
        redis = stack.enter_context(EmbeddedRedis.start())
        token = secrets.token_urlsafe(24)
        workers = tuple(_worker(plan, number, redis.url, folder) for number in range(plan.num_workers))
        _start(workers, stack)
        addresses = [worker.address for worker in workers]
        gateways = tuple(
            _gateway(plan, number, redis.url, token, addresses, folder) for number in range(plan.num_gateways)
        )
        _start(gateways, stack)
        fleet = Fleet(redis, workers, gateways, token)
        fleet.wait_until_connected()
        yield fleet


def _worker(plan: FleetPlan, number: int, redis_url: str, folder: Path) -> Member:
    tree = read_tree(None, [*plan.settings, *plan.of_worker.get(number, ())], {})
    set_at(tree, ("worker", "worker_id"), f"worker-{number}")
    if plan.registered:
        set_at(tree, ("worker", "registry", "url"), redis_url)
    return Member("worker", f"worker-{number}", ["--simulate"] if plan.simulate else [], tree, folder)


def _gateway(
    plan: FleetPlan, number: int, redis_url: str, token: str, addresses: Sequence[str], folder: Path
) -> Member:
    tree = read_tree(None, plan.settings, {})
    set_at(tree, ("redis", "url"), redis_url)
    set_at(tree, ("gateway", "admin_token"), token)
    set_at(tree, ("gateway", "http", "listen"), None)
    if plan.registered:
        set_at(tree, ("gateway", "discovery", "source"), "redis")
    else:
        set_at(tree, ("gateway", "workers"), list(addresses))
    return Member("gateway", f"gateway-{number}", [], tree, folder)


def _start(members: Sequence[Member], stack: ExitStack) -> None:
    """Start them beside each other."""
    for member in members:
        member.start()
        stack.callback(member.end)
    for member in members:
        member.wait_until_ready()


def samples_of(page: str, name: str) -> list[tuple[Labels, float]]:
    """Return the samples of one metric on a page of Prometheus' text format."""
    found: list[tuple[Labels, float]] = []
    for line in page.splitlines():
        if line.startswith((name + "{", name + " ")):
            inside, _, value = line[len(name) :].rpartition(" ")
            pairs = (pair.partition("=") for pair in inside.strip("{} ").split(",") if pair)
            found.append(({label: text.strip('"') for label, _, text in pairs}, float(value)))
    return found


def total_of(page: str, name: str, **labels: str) -> float:
    """Return the sum of the samples on such a page that carry `labels`."""
    return sum(value for found, value in samples_of(page, name) if labels.items() <= found.items())


def _wait(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(_POLL_S)
