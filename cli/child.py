"""A process of our own program, as its supervisor sees it: started, ready, running, ended."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cli.progress import parse_progress
from cli.ready_file import read_ready_file
from cli.tied import tied_command


class ChildDiedError(Exception):
    """A child ended that should run; the message says which and how. Why, it has said itself."""


class Child:
    """One `radixgate COMMAND` in a process of its own. It dies with us, even if we are killed.

    Configured over standard input, so that secrets show in no process list and no file.
    """

    def __init__(self, name: str, process: "subprocess.Popen[str]", ready_file: Path) -> None:
        self.name = name
        self._process = process
        self._ready_file = ready_file
        self._threads: list[threading.Thread] = []

    @classmethod
    def start(
        cls,
        name: str,
        arguments: Sequence[str],
        settings: Mapping[str, Any],
        ready_file: Path,
        *,
        on_log: Callable[[str], None],
        on_progress: Callable[[str, float], None],
        label: str | None = None,
    ) -> "Child":
        """Start `radixgate NAME ARGUMENTS...`, which is called `label` when people are told of it.

        `on_progress` gets the reports on its standard output, `on_log` each other line there and on its standard error;
        both are called from threads, and have been called with everything once `death` or `wait` tell of the end.
        """
        command = [sys.executable, "-P", "-m", "cli", name, *arguments]
        command += ["--config-stdin", "--ready-file", str(ready_file)]
        process = subprocess.Popen(
            tied_command(command, death_signal=signal.SIGKILL),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which stops its children in order
        )
        child = cls(label or name, process, ready_file)
        child._write_settings(settings)
        child._read(process.stderr, on_log)
        child._read(process.stdout, lambda line: _take_output(line, on_log, on_progress))
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> dict[str, Any] | None:
        """Return what the child wrote when it was ready, or None until then."""
        return read_ready_file(self._ready_file)

    def death(self) -> str | None:
        """Return how the child ended, or None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        self._join()
        return f"the {self.name} {_how_it_ended(status)}"

    def terminate(self) -> None:
        """Ask the child to end."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end, at most this long; return whether it has come."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._join()
        return True

    def kill(self) -> None:
        """End the child at once."""
        self._process.kill()
        self._process.wait()
        self._join()

    def _join(self) -> None:
        """Let the readers take what is left in the pipes, which end with the child."""
        for thread in self._threads:
            thread.join(timeout=1.0)

    def _write_settings(self, settings: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            json.dump(settings, self._process.stdin)
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already; `death` tells how

    def _read(self, pipe: IO[str] | None, take: Callable[[str], None]) -> None:
        assert pipe is not None

        def read() -> None:
            with pipe:
                for line in pipe:
                    take(line.rstrip("\n"))

        thread = threading.Thread(target=read, name=f"{self.name}-output", daemon=True)
        self._threads.append(thread)
        thread.start()


def _take_output(line: str, on_log: Callable[[str], None], on_progress: Callable[[str, float], None]) -> None:
    report = parse_progress(line)
    if report is None:
        on_log(line)
    else:
        on_progress(*report)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name
    hint = "; the machine may have run out of memory" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
