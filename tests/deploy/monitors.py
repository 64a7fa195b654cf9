"""A real Prometheus and a real Alertmanager for tests: processes of our own on free ports, gone with us."""

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cli.tied import tied_command
from tests.processes import wait_until
from tests.tools import require_tool

HOW_TO_GET = "make tools"
_START_S = 60.0
_ATTEMPTS = 3  # a free port can be taken before the program binds it

Sample = tuple[dict[str, str], float]


@dataclass(frozen=True)
class Monitor:
    """A running Prometheus or Alertmanager."""

    process: subprocess.Popen[bytes]
    url: str

    def get(self, path: str, **parameters: str) -> Any:
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        with urllib.request.urlopen(f"{self.url}{path}{query}", timeout=30) as response:
            return json.load(response)


class Prometheus(Monitor):
    """Its HTTP API, as far as tests ask it."""

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """Return what an expression yields now, or at a time: labels and values. NaN is left out by nobody."""
        when = {} if at is None else {"time": f"{at:.3f}"}
        result = self.get("/api/v1/query", query=expression, **when)["data"]
        if result["resultType"] == "scalar":
            return [({}, float(result["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in result["result"]]

    def value(self, expression: str) -> float | None:
        """Return the only sample of an expression, or None without one."""
        found = self.query(expression)
        assert len(found) < 2, f"{expression}: {len(found)} samples"
        return found[0][1] if found else None

    def query_range(self, expression: str, start: float, end: float, step_s: float) -> list[dict[str, Any]]:
        parameters = {"query": expression, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_s:g}"}
        series: list[dict[str, Any]] = self.get("/api/v1/query_range", **parameters)["data"]["result"]
        return series

    def firing(self) -> list[dict[str, str]]:
        """Return the labels of all alerts that fire."""
        alerts = self.get("/api/v1/alerts")["data"]["alerts"]
        return [alert["labels"] for alert in alerts if alert["state"] == "firing"]

    def rule_groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.get("/api/v1/rules")["data"]["groups"]
        return groups

    def targets_up(self) -> int:
        active = self.get("/api/v1/targets", state="active")["data"]["activeTargets"]
        return sum(target["health"] == "up" for target in active)


class Alertmanager(Monitor):
    def alerts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/v2/alerts")
        return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_prometheus(folder: Path, config: Mapping[str, Any]) -> Iterator[Prometheus]:
    """Run Prometheus with `config` until the block ends; what it keeps is in `folder`."""
    program = require_tool("prometheus", HOW_TO_GET)
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(dict(config)))
    arguments = [program, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn"]
    with _running(folder / "prometheus.log", arguments) as (process, url):
        yield Prometheus(process, url)


@contextmanager
def running_alertmanager(folder: Path, config: Mapping[str, Any]) -> Iterator[Alertmanager]:
    program = require_tool("prometheus-alertmanager", HOW_TO_GET)
    file = folder / "alertmanager.yaml"
    file.write_text(yaml.safe_dump(dict(config)))
    arguments = [program, f"--config.file={file}", f"--storage.path={folder / 'alerts'}"]
    with _running(folder / "alertmanager.log", [*arguments, "--cluster.listen-address="]) as (process, url):
        yield Alertmanager(process, url)


@contextmanager
def _running(log_file: Path, arguments: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    for _ in range(_ATTEMPTS):
        port = free_port()
        command = tied_command([*arguments, f"--web.listen-address=127.0.0.1:{port}"], death_signal=signal.SIGKILL)
        with log_file.open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        url = f"http://127.0.0.1:{port}"
        try:
            _wait_until_ready(process, url)
            if process.poll() is None:
                yield process, url
                return
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(30)
    raise AssertionError(log_file.read_text())


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str) -> None:
    """Return when it is ready, or has ended instead."""
    wait_until(lambda: process.poll() is not None or _is_ready(url), timeout_s=_START_S, what=f"{url} ready")


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
