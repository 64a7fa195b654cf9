"""A stack that pages are tried out on, and sessions in front of it."""

import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.admin_client import admin_client
from tests.docs.shell import Shell, open_shell
from tests.e2e.stack import Stack, running_stack
from tests.tools import INSTALLED, REPOSITORY

# With every tier, and pools that a page fills in no time.
ARGUMENTS = ("--set", "worker.cache.num_slots=8192", "--set", "worker.cache.host_slots=16384")

DEFAULT_ADDRESSES = {
    "grpc": "127.0.0.1:50051",
    "http": "127.0.0.1:8000",
    "worker": "127.0.0.1:50061",
    "gateway_metrics": "127.0.0.1:9464",
    "worker_metrics": "127.0.0.1:9101",
}

# What pages write in place of a value of the reader's own. In a session, a variable of the shell.
PLACEHOLDER = re.compile(r"\b(KEY_OF_[A-Z_]+|KEY_ID|KEY|REVISION)\b(?!=)")

# Pages that start all processes themselves, as they tell their readers to.
WITHOUT_A_STACK = frozenset({"docs/install.md"})


@dataclass(frozen=True, slots=True)
class Session:
    """A reader in a clone of the repository. Addresses of a page are the defaults; here others take their place."""

    shell: Shell
    addresses: Mapping[str, str]  # by what stands on the page
    variables: Mapping[str, str]
    folder: Path

    def run(self, text: str) -> str:
        """Run what a page shows; return what its reader would see."""
        return self.shown(self.shell.run(PLACEHOLDER.sub(r"${\1}", self.here(text))))

    def here(self, text: str) -> str:
        for default, ours in self.addresses.items():
            text = re.sub(rf"(?<![\w./-]){re.escape(default)}|(?<=://){re.escape(default)}", ours, text)
        return text

    def shown(self, output: str) -> str:
        for default, ours in self.addresses.items():
            output = output.replace(ours, default)
        return output


@pytest.fixture(scope="session")
def documented_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder: Path = tmp_path_factory.mktemp("documented")
    storage = ("--set", f"worker.cache.storage.url=file://{folder}/pages")
    with running_stack(folder, (*ARGUMENTS, *storage)) as running:
        yield running


@pytest.fixture
def session_for(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], AbstractContextManager[Session]]:
    """Open a session for a page, by its name."""

    @contextmanager
    def opened(page: str) -> Iterator[Session]:
        if page in WITHOUT_A_STACK:
            addresses = _free_addresses()
            variables = {"RADIXGATE_TARGET": addresses[DEFAULT_ADDRESSES["grpc"]]}
        else:
            stack: Stack = request.getfixturevalue("documented_stack")
            request.addfinalizer(lambda: _as_it_was(stack))
            addresses, variables = _addresses_of(stack), _variables_of(stack)
        clone = _clone(tmp_path / "radixgate")
        places = {
            "/tmp/": _folder(tmp_path / "tmp"),
            "/var/lib/radixgate/": _folder(tmp_path / "lib"),
            "/adapters/": _adapters(tmp_path / "adapters"),
        }
        addresses |= {written: f"{folder}/" for written, folder in places.items()}
        with open_shell(clone, {**_environ(tmp_path), **variables}) as shell:
            yield Session(shell, addresses, variables, clone)

    return opened


def _as_it_was(stack: Stack) -> None:
    """Remove what a page has made."""
    with admin_client(stack.grpc, stack.admin_token) as client:
        for tenant in list(client.tenants.list()):
            if tenant.tenant_id not in stack.keys:
                client.tenants.delete(tenant.tenant_id)
        for prefix in client.prefixes.list():
            client.prefixes.delete(prefix.prefix_id)


def _addresses_of(stack: Stack) -> dict[str, str]:
    gateway, worker = (url.removeprefix("http://").removesuffix("/metrics") for url in stack.metrics)
    ours = {"grpc": stack.grpc, "http": stack.http, "worker": stack.worker}
    ours |= {"gateway_metrics": gateway, "worker_metrics": worker}
    return {DEFAULT_ADDRESSES[name]: address for name, address in ours.items()}


def _free_addresses() -> dict[str, str]:
    redis = _free_port()
    ours = {default: f"127.0.0.1:{_free_port()}" for default in DEFAULT_ADDRESSES.values()}
    return {**ours, "127.0.0.1:6379": f"127.0.0.1:{redis}", "--port 6379": f"--port {redis}"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _variables_of(stack: Stack) -> dict[str, str]:
    one, other = stack.keys["demo-a"], stack.keys["demo-b"]
    return {
        "RADIXGATE_TARGET": stack.grpc,
        "RADIXGATE_WORKER": stack.worker,
        "RADIXGATE_ADMIN_TOKEN": stack.admin_token,
        "KEY": one,
        "KEY_OF_DEMO_A": one,
        "KEY_OF_DEMO_B": other,
        "KEY_OF_ONE_TENANT": one,
        "KEY_OF_ANOTHER": other,
    }


def _environ(folder: Path) -> dict[str, str]:
    """Return the environment of a reader who has run `make install` and `make tools`."""
    programs = f"{Path(sys.executable).parent}:{INSTALLED}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    return {
        "PATH": programs,
        "HOME": str(_folder(folder / "home")),
        # Where the model is converted already: that takes a minute, once.
        "RADIXGATE_CACHE_DIR": os.environ.get("RADIXGATE_CACHE_DIR", str(Path.home() / ".cache" / "radixgate")),
        "TMPDIR": str(_folder(folder / "tmp")),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _clone(folder: Path) -> Path:
    """Return a folder that reads like the repository; what a page writes does not land there."""
    folder.mkdir()
    for entry in REPOSITORY.iterdir():
        if entry.name not in {".git", "out", ".venv"}:
            (folder / entry.name).symlink_to(entry)
    (folder / ".venv").symlink_to(Path(sys.executable).parent.parent)
    return folder


def _adapters(folder: Path) -> Path:
    """Return a folder with two adapters that a page may name."""
    folder.mkdir()
    for name, adapter in (("tagger-v1", "tagger"), ("tagger-v2", "pirate")):
        (folder / name).symlink_to(REPOSITORY / "examples" / "adapters" / adapter)
    return folder


def _folder(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    return path
