"""Starts the whole stack as a user would (`radixgate serve --demo`) and watches its memory."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Stack:
    """A running stack: where it answers, its demo tenants' keys, and how long it took to be ready."""

    target: str
    metrics: tuple[str, ...]
    keys: dict[str, str]
    ready_after_s: float
    memory: "PeakMemory"


class PeakMemory:
    """Samples the resident memory of a process and its descendants; `peak_mb` is the largest sum seen."""

    def __init__(self, pid: int, interval_s: float = 0.1) -> None:
        self._root = psutil.Process(pid)
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak_mb = 0.0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.peak_mb = max(self.peak_mb, self._resident_mb())

    def _resident_mb(self) -> float:
        total = 0
        try:
            for process in [self._root, *self._root.children(recursive=True)]:
                total += process.memory_info().rss
        except psutil.NoSuchProcess:
            pass  # a process ended while being read: the next sample sees the truth
        return total / 2**20


@contextmanager
def running_stack(arguments: Sequence[str] = ()) -> Iterator[Stack]:
    """Run `radixgate serve --demo` with further `arguments` until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        ready_file = Path(folder) / "ready.json"
        started = time.monotonic()
        command = [sys.executable, "-m", "cli", "serve", "--demo", "--ready-file", str(ready_file), *arguments]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        memory = PeakMemory(process.pid)
        memory.start()
        try:
            ready = _wait_until_ready(process, ready_file)
            yield Stack(
                target=ready["grpc"],
                metrics=tuple(ready["metrics"]),
                keys=ready["tenants"],
                ready_after_s=time.monotonic() - started,
                memory=memory,
            )
        finally:
            memory.stop()
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_TIMEOUT_S)


def _wait_until_ready(process: subprocess.Popen[bytes], ready_file: Path) -> dict[str, Any]:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not ready_file.exists():
        if process.poll() is not None:
            raise RuntimeError(f"the stack ended with exit code {process.returncode} before it was ready")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the stack was not ready within {READY_TIMEOUT_S:.0f} s")
        time.sleep(0.05)
    ready: dict[str, Any] = json.loads(ready_file.read_text())
    return ready
