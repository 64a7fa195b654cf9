"""The gateway's image, really built and really run: in front of a worker and a Redis of this machine."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cli.embedded_redis import EmbeddedRedis
from tests.deploy.image_builds import FOLDER, Buildah, Described, apt_settings, pip_settings
from tests.deploy.image_process import USER, Image, Running, image_at
from tests.processes import wait_until
from tests.tools import REPOSITORY

pytestmark = [pytest.mark.image, pytest.mark.model]

TAG = "localhost/radixgate/gateway:test"
ARGUMENTS = {"VERSION": "1.2.3", "REVISION": "0f00ba7", "SOURCE": "https://git.example/radixgate"}
MAX_BYTES = 400_000_000
TOOLS = ("gcc", "g++", "cc", "make", "git", "pip", "pip3", "curl")  # of whoever builds
SERVING = health_pb2.HealthCheckResponse.SERVING
ADMIN_TOKEN = "an-admin-token-for-tests"


@dataclass(frozen=True)
class Built:
    image: Image
    described: Described


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    buildah = Buildah(FOLDER / "gateway")
    buildah.remove()  # what a run left that was killed
    try:
        buildah.import_base()
        buildah.build("gateway.Dockerfile", TAG, ARGUMENTS)
        described = buildah.described(TAG)
        with buildah.mounted(TAG) as root:
            yield Built(image_at(root, described.config), described)
    finally:
        buildah.remove()


# ----------------------------------------------------------------------------------------------------- what is in it


def test_the_image_says_who_runs_what_and_where_it_comes_from(built: Built) -> None:
    config = built.described.config
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"] == ["radixgate"]
    assert config["StopSignal"] == "SIGTERM"
    assert set(config["ExposedPorts"]) == {"50051/tcp", "8000/tcp", "9464/tcp"}
    labels = {name.rpartition(".")[2]: value for name, value in config["Labels"].items()}
    assert {name.upper(): labels[name] for name in ("version", "revision", "source")} == ARGUMENTS
    assert labels["licenses"] == "Apache-2.0"


def files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        yield from (Path(folder) / name for name in (*folders, *names))


def test_the_image_is_small_and_holds_what_it_needs_only(built: Built) -> None:
    root = built.image.root
    every = list(files(root))
    total = sum(path.lstat().st_size for path in every if path.is_file() and not path.is_symlink())
    assert total < MAX_BYTES
    (packages,) = root.glob("opt/radixgate/lib/python3.*/site-packages")
    assert {"cli", "gateway", "hicache", "radixgate", "grpc"} <= {path.name for path in packages.iterdir()}
    assert [name for name in ("torch", "transformers", "pip", "pytest", "tests") if (packages / name).exists()] == []
    programs = [root / folder / name for folder in ("usr/bin", "usr/local/bin", "opt/radixgate/bin") for name in TOOLS]
    assert [path for path in programs if path.exists()] == []
    assert {path.name for path in every}.isdisjoint({".git", ".dockerignore", "test_images_built.py"})


def test_nobody_can_write_where_others_read(built: Built) -> None:
    open_to_all = [
        path
        for path in files(built.image.root)
        if not path.is_symlink()
        and (mode := path.lstat().st_mode) & stat.S_IWOTH
        and not mode & stat.S_ISVTX
        and not stat.S_ISCHR(mode)
    ]
    assert open_to_all == []
    theirs = [path for path in files(built.image.root) if path.lstat().st_uid == USER]
    assert theirs == [built.image.root / "var/lib/radixgate"]


def test_nothing_of_the_machine_that_built_it_is_in_the_image(built: Built) -> None:
    root = built.image.root
    configured = "\n".join(line for line in pip_settings().splitlines() if "=" in line) + apt_settings()
    values = {value for value in re.split(r"[\s;\"=]+", configured) if "/" in value}
    values |= {str(REPOSITORY), *(os.environ[name] for name in os.environ if name.lower().endswith("_proxy"))}
    values -= {"", "/"}
    assert [value for value in values if value in built.described.text] == []
    assert [name for name in ("etc/pip.conf", "run/secrets", "mnt/etc", "build") if (root / name).exists()] == []
    texts = [path for folder in ("etc", "opt/radixgate/bin", "var/lib") for path in files(root / folder)]
    texts += root.glob("opt/radixgate/**/direct_url.json")
    found = [
        (str(path.relative_to(root)), value)
        for path in texts
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1_000_000
        for content in (path.read_text("utf-8", errors="replace"),)
        for value in values
        if value in content
    ]
    assert found == []


# ------------------------------------------------------------------------------------------------------ what it does


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@dataclass(frozen=True)
class Deployment:
    """A worker and a Redis of this machine, and the configuration of a gateway in front of them."""

    config: Path  # a folder
    address: str
    environ: dict[str, str]

    @property
    def as_operator(self) -> dict[str, str]:
        return {"RADIXGATE_TARGET": self.address, "RADIXGATE_ADMIN_TOKEN": ADMIN_TOKEN}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("worker")
    ready_file = folder / "ready.json"
    settings = ('worker.listen="127.0.0.1:0"', 'worker.metrics_listen="127.0.0.1:0"', "worker.cache.num_slots=2048")
    command = [sys.executable, "-m", "cli", "worker", "--ready-file", str(ready_file)]
    command += [word for setting in settings for word in ("--set", setting)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_until(lambda: ready_file.exists() or process.poll() is not None, timeout_s=240, what="worker ready")
        assert process.poll() is None, (folder / "log").read_text()
        yield json.loads(ready_file.read_text())["grpc"]
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def deployment(worker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    config = tmp_path_factory.mktemp("config")
    address, http, metrics = (f"127.0.0.1:{free_port()}" for _ in range(3))
    with EmbeddedRedis.start() as redis:
        (config / "redis-url").write_text(redis.url)
        (config / "admin-token").write_text(ADMIN_TOKEN)
        (config / "radixgate.toml").write_text(
            f'[gateway]\nlisten = "{address}"\nmetrics_listen = "{metrics}"\nworkers = ["{worker}"]\n'
            f'[gateway.http]\nlisten = "{http}"\n[gateway.server]\ndrain_s = 10\n'
        )
        for path in (config, *config.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        secrets = {"REDIS_URL": "redis-url", "ADMIN_TOKEN": "admin-token"}
        environ = {f"RADIXGATE_{name}_FILE": f"/etc/radixgate/{file}" for name, file in secrets.items()}
        yield Deployment(config, address, environ)


def is_serving(address: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        asked = health_pb2.HealthCheckRequest(service="radixgate.v1.InferenceService")
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=5)  # type: ignore[attr-defined]
        except grpc.RpcError:
            return False
        return bool(answer.status == SERVING)


@pytest.fixture
def gateway(built: Built, deployment: Deployment, tmp_path: Path) -> Iterator[Running]:
    """What the image runs if it is not told anything else: its entry point and its command."""
    command = built.described.config["Cmd"]
    with built.image.running(deployment.config, tmp_path / "log", *command, **deployment.environ) as running:

        def ready() -> bool:
            assert running.process.poll() is None, running.printed
            return is_serving(deployment.address)

        wait_until(ready, timeout_s=60, what="the gateway serves")
        yield running


def test_the_entry_point_is_the_command_and_it_can_write_where_it_should_only(built: Built, tmp_path: Path) -> None:
    assert built.image.run(tmp_path, "--version").startswith("radixgate ")
    assert "gateway" in built.image.run(tmp_path, "--help")
    tried = (
        "for d in / /etc /etc/radixgate /opt/radixgate /tmp $HOME; do touch $d/x 2>/dev/null && echo $d; done; id -u"
    )
    assert built.image.run(tmp_path, "-c", tried, program=["sh"]).split() == ["/tmp", "/var/lib/radixgate", str(USER)]


def test_a_gateway_in_the_image_serves_and_ends_within_its_drain(
    built: Built, deployment: Deployment, gateway: Running
) -> None:
    first = gateway.first
    status = Path(f"/proc/{first.pid}/status").read_text()
    assert re.search(r"^NSpid:\s+\d+\s+1$", status, re.MULTILINE), "the first process of its namespace"
    assert set(re.findall(r"^Uid:(.*)$", status, re.MULTILINE)[0].split()) == {str(USER)}

    image, config = built.image, deployment.config

    def radixgate(*arguments: str, **environ: str) -> str:
        return Image(image.root, {**image.environ, **environ}, image.entrypoint).run(config, *arguments)

    radixgate("tenant", "create", "acme", **deployment.as_operator)
    made = json.loads(radixgate("key", "create", "acme", "--json", **deployment.as_operator).splitlines()[-1])
    to_tenant = {"RADIXGATE_TARGET": deployment.address, "RADIXGATE_API_KEY": made["secret"]}
    answer = json.loads(radixgate("chat", "--json", "--max-new-tokens", "4", "Hello!", **to_tenant).splitlines()[-1])
    assert answer["usage"]["completion_tokens"] == 4

    os.kill(first.pid, signal.SIGTERM)
    assert gateway.process.wait(15) == 0, gateway.printed


def test_a_process_that_is_told_to_end_before_it_serves_ends_at_once(built: Built, tmp_path: Path) -> None:
    """The kernel gives the first process of a container only signals that it handles."""
    config = tmp_path / "config"
    config.mkdir(0o755)
    file = config / "radixgate.toml"
    os.mkfifo(file)
    file.chmod(0o644)
    with built.image.running(config, tmp_path / "log", *built.described.config["Cmd"]) as running:
        first = running.first
        with opened_for_a_reader(file):
            os.kill(first.pid, signal.SIGTERM)
            assert running.process.wait(20) == 128 + signal.SIGTERM, running.printed


@contextmanager
def opened_for_a_reader(pipe: Path) -> Iterator[None]:
    """Wait until somebody reads from a named pipe, and let it wait until the block ends."""
    opened: list[int] = []

    def try_to_open() -> bool:
        with suppress(OSError):  # nobody reads
            opened.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(opened)

    wait_until(try_to_open, timeout_s=60, what="somebody reads the configuration")
    try:
        yield
    finally:
        os.close(opened[0])
