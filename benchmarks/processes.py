"""Starts a server, waits until it is ready, watches its memory, and ends it and all it has started."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

STOP_TIMEOUT_S = 30.0


class PeakMemory:
    """Samples the resident memory of a process and its descendants; `peak_mb` is the largest sum seen.

    Sampling runs beside what is measured, so descendants, which are dear to find, are looked for once a second.
    """

    def __init__(self, pid: int, interval_s: float = 0.1, samples_per_search: int = 10) -> None:
        self._root = psutil.Process(pid)
        self._interval_s = interval_s
        self._samples_per_search = samples_per_search
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak_mb = 0.0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        family: list[psutil.Process] = []
        samples = 0
        while not self._stop.wait(self._interval_s):
            try:
                if samples % self._samples_per_search == 0:
                    family = [self._root, *self._root.children(recursive=True)]
                samples += 1
                self.peak_mb = max(self.peak_mb, sum(process.memory_info().rss for process in family) / 2**20)
            except psutil.NoSuchProcess:
                samples = 0  # a process ended while being read: the next sample sees the truth


@dataclass(frozen=True, slots=True)
class Started:
    """A server that is ready. `started_s` is on the clock of `time.monotonic`."""

    pid: int
    started_s: float
    ready_after_s: float
    memory: PeakMemory


@contextmanager
def running_process(
    command: Sequence[str],
    *,
    what: str,
    is_ready: Callable[[], bool],
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[Started]:
    """Run `command` until the block ends; its output goes to `log`, or where ours goes.

    Raises RuntimeError where it ends before it is ready, TimeoutError where it takes longer than `timeout_s`.
    """
    started_s = time.monotonic()
    with _output(log) as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            env={**os.environ, **(environment or {})},
        )
    memory = PeakMemory(process.pid)
    memory.start()
    try:
        _wait_until_ready(process, is_ready, started_s + timeout_s, what, log)
        yield Started(process.pid, started_s, time.monotonic() - started_s, memory)
    finally:
        memory.stop()
        _end(process)


@contextmanager
def _output(log: Path | None) -> Iterator[int | None]:
    if log is None:
        yield None
        return
    with log.open("wb") as file:
        yield file.fileno()


def _wait_until_ready(
    process: "subprocess.Popen[bytes]", is_ready: Callable[[], bool], deadline_s: float, what: str, log: Path | None
) -> None:
    while not is_ready():
        if process.poll() is not None:
            raise RuntimeError(
                f"{what} ended with exit code {process.returncode} before it was ready{_last_words(log)}"
            )
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} was not ready in time{_last_words(log)}")
        time.sleep(0.05)


def _last_words(log: Path | None, num_lines: int = 15) -> str:
    if log is None:
        return ""
    lines = log.read_text(errors="replace").splitlines()[-num_lines:]
    return "; its last lines:\n" + "\n".join(lines)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask the process to end, then what it has left behind; kill what does not listen."""
    family = _family(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _, orphans = psutil.wait_procs(family, timeout=0)
    for orphan in orphans:
        with suppress(psutil.NoSuchProcess):
            orphan.terminate()
    _, deaf = psutil.wait_procs(orphans, STOP_TIMEOUT_S)
    for one in deaf:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(deaf, STOP_TIMEOUT_S)


def _family(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
