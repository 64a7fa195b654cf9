"""Builds images with buildah where there is neither a container engine nor a registry.

The base is a minimal Debian that debootstrap makes, once, in .cache. What pip and apt of this machine are configured
with reaches a build as its secrets, and its files by a mount; neither is in the image.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools import REPOSITORY, missing, require_tool

FOLDER = REPOSITORY / ".cache" / "images"
BASE = "localhost/radixgate-base:bookworm"
BUILD_TIMEOUT_S = 1200.0
# Where a build sees the files of this machine: a folder that is in any Debian, so the mount leaves no trace.
_HOST = "/mnt"
_UNUSED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists", "var/log")
_OF_THIS_MACHINE = ("etc/resolv.conf", "etc/hostname")
# Of apt's settings: how Debian is reached, and what is believed of it.
_APT_SETTINGS = ("Acquire::http", "Acquire::https", "Acquire::Check-")


def run(command: Sequence[str | Path], **environ: str) -> str:
    """Run a command and return what it printed; what it printed is shown if it fails."""
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def base_archive() -> Path:
    """Return a tar file of a minimal Debian with Python. Made once, in a minute."""
    archive = FOLDER / "bookworm-python3.tar"
    if not archive.exists():
        if os.geteuid() != 0:
            missing("debootstrap makes the base image as root only")
        debootstrap = require_tool("debootstrap", "run: make tools")
        root = FOLDER / "root"
        shutil.rmtree(root, ignore_errors=True)
        FOLDER.mkdir(parents=True, exist_ok=True)
        run([debootstrap, "--variant=minbase", "--include=python3,ca-certificates", "bookworm", root])
        for name in _UNUSED:
            shutil.rmtree(root / name)
            (root / name).mkdir()
        for name in _OF_THIS_MACHINE:
            (root / name).unlink(missing_ok=True)
        unfinished = archive.with_suffix(".unfinished")
        run(["tar", "-C", root, "--numeric-owner", "--one-file-system", "-cf", unfinished, "."])
        unfinished.replace(archive)
        shutil.rmtree(root)
    return archive


class Buildah:
    """buildah, with a storage of its own."""

    def __init__(self, folder: Path) -> None:
        program = require_tool("buildah", "run: make tools")
        self._folder = folder
        self._command = [program, "--root", str(folder / "storage"), "--runroot", str(folder / "run")]

    def __call__(self, *arguments: str | Path) -> str:
        return run([*self._command, *arguments], BUILDAH_ISOLATION="chroot").strip()

    def import_base(self) -> None:
        archive = base_archive()
        container = self("from", "scratch")
        self("add", "--quiet", container, archive, "/")
        self("commit", "--quiet", "--rm", container, BASE)

    def build(self, dockerfile: str, tag: str, arguments: Mapping[str, str]) -> None:
        secrets = self._folder / "secrets"
        secrets.mkdir(parents=True, exist_ok=True)
        (secrets / "pip.conf").write_text(pip_settings(), "utf-8")
        (secrets / "apt.conf").write_text(apt_settings(), "utf-8")
        given = [f"--build-arg={name}={value}" for name, value in {"PYTHON_IMAGE": BASE, **arguments}.items()]
        given += [f"--secret=id={path.name},src={path}" for path in secrets.iterdir()]
        given += [f"--volume=/:{_HOST}:ro", "--layers=false", "--pull-never"]
        self("bud", "--quiet", *given, "--file", f"deploy/docker/{dockerfile}", "--tag", tag, ".")

    @contextmanager
    def mounted(self, tag: str) -> Iterator[Path]:
        """Give the folder in which the files of an image are."""
        container = self("from", "--pull-never", tag)
        try:
            yield Path(self("mount", container))
        finally:
            self("rm", container)

    def described(self, tag: str) -> "Described":
        told = json.loads(self("inspect", "--type", "image", tag))
        sizes = {name: image["size"] for image in json.loads(self("images", "--json")) for name in image["names"] or ()}
        return Described(told["OCIv1"], sizes[tag], json.dumps(told))

    def remove(self) -> None:
        """Remove all images, and what they were made of."""
        self("rm", "--all")
        self("rmi", "--all", "--force")
        shutil.rmtree(self._folder)


@dataclass(frozen=True, slots=True)
class Described:
    """What an image says of itself."""

    oci: Mapping[str, Any]
    size: str  # as buildah prints it, for example "327 MB"
    text: str  # all of it, to look for what must not be there

    @property
    def config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = self.oci["config"]
        return config


def pip_settings() -> str:
    """Return a pip.conf that says what pip of this machine is configured with, for a build."""
    listed = run([sys.executable, "-m", "pip", "config", "list"]).splitlines()
    settings: dict[str, str] = {}
    # By weight: files first, then the environment.
    for line in sorted(listed, key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    if "cert" not in settings and (bundle := os.environ.get("SSL_CERT_FILE")):
        settings["cert"] = bundle
    return "\n".join(["[global]", *(f"{name} = {_in_build(value)}" for name, value in settings.items()), ""])


def apt_settings() -> str:
    lines = run(["apt-config", "dump"]).splitlines()
    return "".join(f"{line}\n" for line in lines if line.startswith(_APT_SETTINGS) and '""' not in line)


def _in_build(value: str) -> str:
    """Return a value of pip's whose paths of this machine are those that a build sees."""
    words = (word.replace("file:///", f"file://{_HOST}/") for word in value.split())
    return " ".join(f"{_HOST}{word}" if word.startswith("/") else word for word in words)
