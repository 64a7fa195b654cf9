"""The sink that a process's settings ask for."""

import importlib
from collections.abc import Mapping

from tracing.calls import NoTracer, SamplingTracer, Tracer
from tracing.config import TracingConfig
from tracing.queue import SpanQueue
from tracing.sampling import Sampler
from tracing.spans import NoSpans, SpanSink

CLOSE_S = 3.0
"""How long an ending process may take to bring its last spans to the collector."""

_PACKAGE = "opentelemetry"


class TracingError(ValueError):
    """Traces are configured and cannot be made; the message says what to do."""


def open_sink(config: TracingConfig, process: Mapping[str, str]) -> SpanSink:
    """Return where spans go; nothing of OpenTelemetry is loaded where they go nowhere.

    `process` describes this process, by names of OpenTelemetry's resource attributes. Raises TracingError.
    """
    if config.endpoint is None:
        return NoSpans()
    try:
        otlp = importlib.import_module("tracing.otlp")
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != _PACKAGE:
            raise
        raise TracingError(
            f"tracing.endpoint is set, which needs the Python package {error.name}; "
            "install the extra that brings it: pip install 'radixgate[otel]'"
        ) from error
    try:
        return SpanQueue(otlp.OtlpExporter(config.endpoint, process))
    except Exception as error:
        # Whatever OTEL_EXPORTER_OTLP_* name: a certificate that is not there, a timeout that is no number.
        raise TracingError(f"tracing.endpoint: {config.endpoint} cannot be used: {error}") from error


def tracer_for(config: TracingConfig, sink: SpanSink) -> Tracer:
    """Return what records a gateway's calls into `sink`."""
    if not sink.wanted:
        return NoTracer()
    return SamplingTracer(Sampler(config.sample_ratio, config.asked_per_minute), sink)
