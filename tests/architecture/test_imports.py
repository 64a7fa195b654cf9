"""The direction of imports, as declared in pyproject.toml and as it shows at run time."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import REPOSITORY, require_tool

LOAD_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module({package!r})
for module in pkgutil.walk_packages(package.__path__, {package!r} + "."):
    if not module.name.startswith({but!r}):
        importlib.import_module(module.name)
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""


def loaded_with(package: str, but: str | tuple[str, ...] = "\0") -> set[str]:
    """The top-level packages that a fresh process has loaded after every module of `package`."""
    program = LOAD_ALL.format(package=package, but=but)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_contracts_of_import_linter_are_kept() -> None:
    command = [require_tool("lint-imports", "make install"), "--no-cache"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_gateway_runs_without_torch() -> None:
    assert loaded_with("gateway").isdisjoint({"torch", "transformers", "worker"})


def test_the_engine_decides_without_tensors_network_and_metrics() -> None:
    assert loaded_with("worker.engine").isdisjoint({"torch", "transformers", "grpc", "prometheus_client", "gateway"})


def test_the_cache_is_a_library_of_its_own() -> None:
    ours = {"cli", "gateway", "worker", "metrics", "radixgate"}
    with_tensors = ("hicache.tiers", "hicache.copies.copier", "hicache.copies.cuda_copier", "hicache.copies.streams")
    loaded = loaded_with("hicache", but=(*with_tensors, "hicache.storage.redis_store"))
    assert loaded.isdisjoint(ours | {"torch", "transformers", "grpc", "prometheus_client", "redis"})


def test_metrics_are_a_leaf() -> None:
    assert loaded_with("metrics").isdisjoint({"cli", "gateway", "worker", "hicache", "radixgate", "torch", "grpc"})


def test_transport_is_a_leaf() -> None:
    ours = {"cli", "gateway", "worker", "hicache", "metrics", "radixgate"}
    assert loaded_with("transport").isdisjoint(ours | {"torch", "prometheus_client", "redis"})


@pytest.mark.parametrize(
    "package", ["cli", "gateway", "worker", "hicache", "metrics", "tracing", "transport", "radixgate.v1.inference_pb2"]
)
def test_packages_import_from_any_folder(package: str, tmp_path: Path) -> None:
    program = f"import {package}; print({package}.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=str(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(REPOSITORY))


def test_the_folder_of_the_stubs_is_no_package() -> None:
    # A proto/__init__.py would shadow proto-plus, which is imported as `proto` too.
    assert not (REPOSITORY / "proto" / "__init__.py").exists()
