"""One bash session on a terminal of its own, as a reader of a page has it open."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.processes import is_gone, wait_until

_COLUMNS = 160
_END = "end of block"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# A failure anywhere in a block counts, and the block goes on: its last command alone would hide the others.
_START = """
set -o errtrace
trap 'failed="${failed:-$BASH_COMMAND}"' ERR
"""


class BlockFailedError(AssertionError):
    """A command of a page did not do what the page says."""


class Shell:
    """Runs blocks one after the other: what one sets, the next one finds."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int, folder: Path) -> None:
        self._process = process
        self._terminal = terminal
        self._folder = folder
        self._output = bytearray()
        self._blocks = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def run(self, text: str, timeout_s: float = 240.0) -> str:
        """Run a block to its end and return what it printed; raises BlockFailedError where a command fails."""
        self._blocks += 1
        script = self._folder / f".block-{self._blocks}.sh"
        script.write_text(text)
        end = f"{_END} {self._blocks}"
        start = len(self._output)
        self._type(f"failed=; source {script} </dev/null; printf '\\n%s[%s]\\n' '{end}' \"$failed\"\n")
        wait_until(lambda: self._has(f"{end}[", start), timeout_s=timeout_s, what=f"end of: {text}")
        wait_until(lambda: self._text(start).endswith("]\n"), what="the whole last line")
        output, _, failed = self._text(start).rpartition(f"\n{end}[")
        if failed != "]\n":
            raise BlockFailedError(f"`{failed[:-2]}` failed in:\n{text}\nand all of it printed:\n{output}")
        return output

    def close(self) -> None:
        """End it and everything that it has started."""
        self._process.stdin.close()  # type: ignore[union-attr]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait(60)
        wait_until(lambda: not _lives(self._process.pid), timeout_s=60, what="what the page started has ended")
        os.close(self._terminal)
        self._reader.join(10)

    def _type(self, text: str) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(text.encode())
        stdin.flush()

    def _has(self, text: str, start: int) -> bool:
        assert not is_gone(self._process.pid), f"the shell has ended:\n{self._text(start)}"
        return text in self._text(start)

    def _text(self, start: int) -> str:
        return _ANSI.sub("", self._output[start:].decode(errors="replace")).replace("\r", "")

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other end is gone
            while data := os.read(self._terminal, 65536):
                self._output += data


@contextmanager
def open_shell(folder: Path, environ: Mapping[str, str]) -> Iterator[Shell]:
    """Open a session in `folder`; when the block ends, so does all that was started in it."""
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 50, _COLUMNS, 0, 0))
    process = subprocess.Popen(
        ["bash", "--norc", "--noprofile"],
        stdin=subprocess.PIPE,
        stdout=inside,
        stderr=inside,
        cwd=folder,
        env={**environ, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": str(_COLUMNS)},
        start_new_session=True,
    )
    os.close(inside)
    shell = Shell(process, terminal, folder)
    try:
        shell.run(_START)
        yield shell
    finally:
        shell.close()


def _lives(group: int) -> bool:
    """Whether anything of a process group still runs. What has ended and waits to be reaped does not."""
    members = (each.pid for each in psutil.process_iter() if _group_of(each.pid) == group)
    return any(not is_gone(pid) for pid in members)


def _group_of(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return None
