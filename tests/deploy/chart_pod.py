"""Runs a pod of the chart as a process of this machine: its volumes as folders, arguments and variables as they are.

What a kubelet does to files (paths, owners) is done by writing paths anew; addresses are those of one loopback address
of our own, so that the ports are the pod's.
"""

import base64
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cli.embedded_redis import find_program
from tests.deploy.chart import Manifest, container_of, named


def own_address() -> str:
    """Return a loopback address that no other test process uses."""
    return f"127.{64 + os.getpid() // 65536 % 128}.{os.getpid() // 256 % 256}.{os.getpid() % 254 + 1}"


@dataclass(frozen=True)
class Pod:
    """A container of a pod, with its volumes below a folder of ours."""

    container: Manifest
    folder: Path
    replaced: Mapping[str, str]  # in every file, argument and variable

    def rewritten(self, text: str) -> str:
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        mounts = sorted((mount["mountPath"] for mount in self.container["volumeMounts"]), key=len, reverse=True)
        pattern = "|".join(re.escape(path) for path in mounts)
        return re.sub(rf"(?<![\w/])({pattern})(?=[/\s\"';]|$)", lambda match: f"{self.folder}{match[1]}", text)

    @property
    def environment(self) -> dict[str, str]:
        own = {
            each["name"]: self.rewritten(each.get("value", "the-pods-name-0")) for each in self.container.get("env", [])
        }
        programs = f"{Path(find_program()).parent}:{os.environ['PATH']}"
        return {"PATH": programs, "HOME": f"{self.folder}/home", "RADIXGATE_CACHE_DIR": str(model_cache()), **own}

    @property
    def command(self) -> list[str]:
        arguments = [self.rewritten(each) for each in self.container.get("args", [])]
        arguments = [each.replace("$(POD_NAME)", self.environment.get("POD_NAME", "")) for each in arguments]
        if "command" in self.container:
            return [self.rewritten(each) for each in self.container["command"]] + arguments
        return [sys.executable, "-m", "cli", *arguments]

    @contextmanager
    def running(self) -> Iterator["subprocess.Popen[bytes]"]:
        """Run it until the block ends; ended with SIGTERM if it still runs then. What it says is in `log`."""
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen(
                self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(60)

    @property
    def said(self) -> str:
        return (self.folder / "log").read_text()

    def probe(self, name: str, host: str) -> bool:
        """Ask what a kubelet would ask: whether the probe succeeds."""
        probe = self.container[name]
        if "grpc" in probe:
            return grpc_answers(f"{host}:{probe['grpc']['port']}", probe["grpc"]["service"])
        if "exec" in probe:
            command = [self.rewritten(each) for each in probe["exec"]["command"]]
            done = subprocess.run(command, env=self.environment, capture_output=True, check=False)
            return done.returncode == 0
        [port] = [each for each in self.container["ports"] if each["name"] == probe["httpGet"]["port"]]
        return http_answers(f"http://{host}:{port['containerPort']}{probe['httpGet']['path']}")


def model_cache() -> Path:
    configured = os.environ.get("RADIXGATE_CACHE_DIR")
    return Path(configured) if configured else Path.home() / ".cache" / "radixgate"


def grpc_answers(address: str, service: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=5)  # type: ignore[attr-defined]
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def http_answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bool(200 <= response.status < 400)
    except OSError:
        return False


def listening(process: "subprocess.Popen[bytes]", host: str) -> set[int]:
    """Return the ports on which a process listens; it listens nowhere but on `host`."""
    found = [each for each in psutil.Process(process.pid).net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    # gRPC's sockets are of IPv6, whatever they are bound to.
    assert {each.laddr.ip.removeprefix("::ffff:") for each in found} <= {host}
    return {each.laddr.port for each in found}


def pod_on_disk(
    objects: Sequence[Manifest],
    pod: Manifest,
    folder: Path,
    replaced: Mapping[str, str],
    extra: Mapping[str, Mapping[str, bytes]] | None = None,
) -> Pod:
    """Write a pod's volumes. `extra` holds Secrets that are not in the render, by name."""
    made = Pod(container_of(pod), folder, replaced)
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    (folder / "home").mkdir(parents=True)
    for mount in made.container["volumeMounts"]:
        target = Path(f"{folder}{mount['mountPath']}")
        target.mkdir(parents=True, exist_ok=True)
        for name, content in _files(objects, volumes.get(mount["name"], {}), extra or {}).items():
            (target / name).write_text(made.rewritten(content.decode()))
    return made


def _files(
    objects: Sequence[Manifest], volume: Mapping[str, Any], extra: Mapping[str, Mapping[str, bytes]]
) -> dict[str, bytes]:
    if "configMap" in volume:
        data = named(objects, "ConfigMap", volume["configMap"]["name"])["data"]
        return {name: text.encode() for name, text in data.items()}
    if "secret" not in volume:
        return {}
    secret = volume["secret"]
    held = extra.get(secret["secretName"])
    if held is None:
        encoded = named(objects, "Secret", secret["secretName"])["data"]
        held = {key: base64.b64decode(value) for key, value in encoded.items()}
    items = secret.get("items", [{"key": key, "path": key} for key in held])
    return {item["path"]: held[item["key"]] for item in items}
