"""What a process does with `[tracing]`: nothing at all without an endpoint, a clear word without the packages."""

import subprocess
import sys

import pytest

from cli.config import config_from
from cli.validation import ConfigError
from tracing.calls import NoTracer, SamplingTracer
from tracing.config import TracingConfig
from tracing.opening import TracingError, open_sink, tracer_for
from tracing.spans import NoSpans

# Whoever asks for OpenTelemetry is told that it is not installed.
WITHOUT_OTEL = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def run(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def test_without_an_endpoint_nothing_is_recorded() -> None:
    sink = open_sink(TracingConfig(), {})
    assert isinstance(sink, NoSpans)
    assert isinstance(tracer_for(TracingConfig(), sink), NoTracer)


def test_with_one_calls_are() -> None:
    config = TracingConfig(endpoint="http://127.0.0.1:1")
    sink = open_sink(config, {"service.name": "x"})
    assert isinstance(tracer_for(config, sink), SamplingTracer)
    sink.close(5.0)


def test_a_gateway_without_the_packages_says_which_extra_brings_them() -> None:
    program = WITHOUT_OTEL + "from cli.main import main\nmain()"
    arguments = ("gateway", "--set", "redis.url=redis://127.0.0.1:1", "--set", "tracing.endpoint=http://collector:4317")
    done = run(program, *arguments)
    assert done.returncode == 1
    assert "tracing.endpoint is set, which needs the Python package opentelemetry" in done.stderr
    assert "pip install 'radixgate[otel]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_environment_gets_wrong_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    with pytest.raises(TracingError, match="cannot be used"):
        open_sink(TracingConfig(endpoint="http://127.0.0.1:1"), {})


@pytest.mark.parametrize("endpoint", ["http://collector:4317", "https://[::1]:4317", "http://10.0.0.1:4317/"])
def test_endpoints_have_a_scheme_and_a_port(endpoint: str) -> None:
    assert config_from({"tracing": {"endpoint": endpoint}}).tracing.endpoint == endpoint


@pytest.mark.parametrize(
    "endpoint", ["collector:4317", "http://collector", "http://:4317", "http://c:4317/v1/traces", "http://k:s@c:1", "x"]
)
def test_others_are_refused_in_words(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"tracing\.endpoint: .* must read http://HOST:PORT or https://HOST:PORT"):
        config_from({"tracing": {"endpoint": endpoint}})


@pytest.mark.parametrize("settings", [{"sample_ratio": 1.5}, {"sample_ratio": -0.1}, {"asked_per_minute": -1}])
def test_shares_lie_between_nothing_and_everything(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="tracing"):
        config_from({"tracing": settings})
