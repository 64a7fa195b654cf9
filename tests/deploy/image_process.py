"""Runs what is in an image as a container would: as the first process of its own namespace, as nobody's user, on a root
that cannot be written to. Of this machine it has the network and the folder of its configuration.
"""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.processes import wait_until

USER = 65532
CONFIG_FOLDER = "/etc/radixgate"
_ENTER = """
set -e
root=$1 config=$2
shift 2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/tmp"
mount -t tmpfs -o mode=0750,uid=65532,gid=65532,nosuid,nodev tmpfs "$root/var/lib/radixgate"
mount --bind "$config" "$root/etc/radixgate"
mount -o remount,bind,ro "$root/etc/radixgate"
mount -o remount,bind,ro "$root"
exec chroot --userspec=65532:65532 --groups=65532 "$root" "$@"
"""


@dataclass(frozen=True, slots=True)
class Image:
    """An image's files, and what it says is to be run."""

    root: Path
    environ: Mapping[str, str]
    entrypoint: Sequence[str]

    def command(self, config: Path, arguments: Sequence[str]) -> list[str]:
        """Return what runs the entry point; without one, `arguments` are a program and its arguments."""
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "enter"]
        return [*enter, str(self.root), str(config), *arguments]

    def run(self, config: Path, *arguments: str, program: Sequence[str] | None = None) -> str:
        """Run to the end and return what was printed. Fails unless the exit status is 0."""
        done = subprocess.run(
            self.command(config, [*(self.entrypoint if program is None else program), *arguments]),
            env=dict(self.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, config: Path, log: Path, *arguments: str, **environ: str) -> Iterator["Running"]:
        """Run the entry point until the block ends; killed then, if it still runs."""
        command = self.command(config, [*self.entrypoint, *arguments])
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env={**self.environ, **environ}, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            yield Running(process, log)
        finally:
            process.kill()  # and with it, what it has forked
            process.wait(30)


@dataclass(frozen=True, slots=True)
class Running:
    """A container's process, and what keeps it."""

    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def first(self) -> psutil.Process:
        """The process that is the first of its namespace, once it is what the image runs."""
        found: list[psutil.Process] = []

        def looked() -> bool:
            assert self.process.poll() is None, self.printed
            found[:] = psutil.Process(self.process.pid).children()
            return bool(found) and found[0].uids().real == USER and found[0].name() != "chroot"

        wait_until(looked, timeout_s=30, what="the image's process")
        return found[0]

    @property
    def printed(self) -> str:
        return self.log.read_text("utf-8", errors="replace")


def image_at(root: Path, config: Mapping[str, object]) -> Image:
    """`config`: as the image says."""
    environ = config["Env"]
    entrypoint = config["Entrypoint"]
    assert isinstance(environ, list)
    assert isinstance(entrypoint, list)
    return Image(root, dict(each.split("=", 1) for each in environ), entrypoint)
