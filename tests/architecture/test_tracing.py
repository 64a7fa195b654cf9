"""OpenTelemetry is loaded where it is configured, and nowhere else."""

import subprocess
import sys

import pytest

from tests.architecture.test_imports import loaded_with

BUILD = """
import sys
from {module} import {name}
from tracing.config import TracingConfig
from tracing.opening import open_sink, tracer_for
sink = open_sink(TracingConfig(), {{}})
tracer_for(TracingConfig(), sink)
print(*sys.modules)
"""
# What records and sends spans. Redis's client imports OpenTelemetry's metrics by itself, where they are installed.
ITS_PARTS = {"tracing.otlp", "opentelemetry.sdk.trace", "opentelemetry.exporter", "opentelemetry.proto"}


@pytest.mark.parametrize(("module", "name"), [("gateway.app", "run_gateway"), ("worker.app", "run_worker")])
def test_a_process_that_records_nothing_loads_nothing_of_it(module: str, name: str) -> None:
    program = BUILD.format(module=module, name=name)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "tracing.opening" in loaded
    assert loaded.isdisjoint(ITS_PARTS)


def test_the_library_of_traces_is_a_leaf() -> None:
    loaded = loaded_with("tracing", but="tracing.otlp")
    assert loaded.isdisjoint({"cli", "gateway", "worker", "hicache", "radixgate", "grpc", "opentelemetry", "torch"})
    assert "opentelemetry" in loaded_with("tracing")
