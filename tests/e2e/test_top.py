"""`radixgate top` on a terminal: a pseudo-terminal, with the product's own metrics behind real endpoints."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.top.fleet_world import a_gateway, a_worker, pass_request, serve_request, served

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

COMMAND = (sys.executable, "-m", "cli", "top")
_ENTER, _LEAVE, _SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


@dataclass
class Terminal:
    """A program on a terminal of its own."""

    process: "subprocess.Popen[bytes]"
    master: int
    slave: int
    output: bytearray = field(default_factory=bytearray)

    def press(self, keys: str) -> None:
        """Press keys; what `wait_for` looks at begins here."""
        self.output.clear()
        os.write(self.master, keys.encode())

    def wait_for(self, text: str, timeout_s: float = 60) -> str:
        deadline = time.monotonic() + timeout_s
        while text not in self.shown():
            assert time.monotonic() < deadline, f"never shown: {text!r}, only {self.shown()[-2000:]!r}"
            self._read()
        return self.shown()

    def shown(self) -> str:
        return self.output.decode("utf-8", "replace")

    def end(self, timeout_s: float = 30) -> int:
        """Wait for the end, and for everything that was written until then."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "does not end"
            self._read()
        while self._read():
            pass
        return self.process.returncode

    def resize(self, rows: int, columns: int) -> None:
        self.output.clear()
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> bool:
        ready, _, _ = select.select([self.master], [], [], 0.1)
        if ready:
            self.output.extend(os.read(self.master, 65536))
        return bool(ready)


@contextmanager
def on_a_terminal(*arguments: str, rows: int = 24, columns: int = 80) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environ | {"TERM": "xterm-256color"}
    )
    try:
        yield Terminal(process, master, slave)
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


@pytest.fixture(scope="module")
def endpoints() -> Iterator[tuple[str, ...]]:
    worker, gateway = a_worker(), a_gateway()
    serve_request(worker, "acme", 100, 5, device=60)
    pass_request(gateway, "acme", 100, 5, device=60)
    with served(worker.registry) as first, served(gateway.registry) as second:
        yield ("--metrics", first, "--metrics", second, "--interval", "200ms", "--timeout", "10s")


def test_it_draws_takes_keys_follows_the_size_and_leaves_the_terminal_as_it_was(endpoints: tuple[str, ...]) -> None:
    with on_a_terminal(*endpoints) as terminal:
        before = termios.tcgetattr(terminal.slave)
        terminal.wait_for("worker-0")
        assert _ENTER in terminal.output
        assert termios.tcgetattr(terminal.slave) != before  # keys come one by one
        terminal.press("2")
        terminal.wait_for("evictable")
        terminal.press("4s")
        terminal.wait_for("OUT/s↓")
        terminal.press("?")
        terminal.wait_for("hold the picture")
        terminal.press("x1")
        terminal.wait_for("GATEWAY")
        assert "HOST%" not in terminal.shown()
        terminal.resize(50, 200)
        terminal.wait_for("HOST%")
        terminal.press("q")
        assert terminal.end() == 0
        assert terminal.output.rindex(_LEAVE) > 0
        assert _SHOW_CURSOR in terminal.output
        assert termios.tcgetattr(terminal.slave) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_ends_it_and_the_terminal_is_given_back(
    endpoints: tuple[str, ...], number: signal.Signals, code: int
) -> None:
    with on_a_terminal(*endpoints) as terminal:
        before = termios.tcgetattr(terminal.slave)
        terminal.wait_for("worker-0")
        terminal.process.send_signal(number)
        assert terminal.end() == code
        assert _LEAVE in terminal.output
        assert _SHOW_CURSOR in terminal.output
        assert termios.tcgetattr(terminal.slave) == before
        assert "Traceback" not in terminal.shown()


def test_an_endpoint_that_dies_while_it_is_watched_is_shown_as_down() -> None:
    with ExitStack() as endpoint:
        url = endpoint.enter_context(served(a_worker("dying").registry))
        with on_a_terminal("--metrics", url, "--interval", "200ms", columns=120) as terminal:
            terminal.wait_for("● up")
            endpoint.close()
            terminal.wait_for("○ down")
            assert "dying" in terminal.shown()


def test_without_a_terminal_there_is_one_snapshot_and_json_for_scripts(
    endpoints: tuple[str, ...], tmp_path: Path
) -> None:
    plain = subprocess.run([*COMMAND, *endpoints], capture_output=True, check=True, timeout=120)
    assert b"\x1b" not in plain.stdout
    assert "worker-0" in plain.stdout.decode()
    ready = tmp_path / "ready.json"
    ready.write_text(json.dumps({"metrics": [url for url in endpoints if url.startswith("http")], "tenants": {}}))
    arguments = ("--ready-file", str(ready), "--json", "--interval", "200ms", "--timeout", "10s")
    found = subprocess.run([*COMMAND, *arguments], capture_output=True, check=True, timeout=120)
    view: dict[str, Any] = json.loads(found.stdout)
    assert [row["worker"] for row in view["workers"]] == ["worker-0"]
    assert view["gateways"][0]["redis"] is True
    assert view["totals"]["hit_rate"] is None  # nothing came between the two looks


def test_a_snapshot_of_nobody_fails() -> None:
    found = subprocess.run(
        [*COMMAND, "--metrics", "127.0.0.1:1", "--once", "--interval", "100ms"], check=False, capture_output=True
    )
    assert found.returncode == 1
    assert "no worker and no gateway answers" in found.stderr.decode()
