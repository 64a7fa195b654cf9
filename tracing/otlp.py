"""Spans to a collector, by OTLP over gRPC. The only module that imports OpenTelemetry; it needs the extra `otel`.

Headers, certificates, timeout and compression are those of OTEL_EXPORTER_OTLP_*, attributes of the process those of
OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME, as the SDK reads them.
"""

import logging
from collections.abc import Mapping, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from tracing.spans import Kind, Span

_KINDS = {
    Kind.INTERNAL: trace.SpanKind.INTERNAL,
    Kind.SERVER: trace.SpanKind.SERVER,
    Kind.CLIENT: trace.SpanKind.CLIENT,
}
# Tells of each failed attempt; the queue tells once in a while what was dropped.
_CHATTERER = "opentelemetry.exporter.otlp.proto.grpc"
_STOP_MS = 100


class OtlpExporter:
    """An Exporter."""

    def __init__(self, endpoint: str, process: Mapping[str, str]) -> None:
        """`process` describes this process; what the environment says is stronger."""
        logging.getLogger(_CHATTERER).setLevel(logging.CRITICAL)
        self._exporter = OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http:"))
        said = OTELResourceDetector().detect().attributes
        resource = Resource.create({**process, **said})
        self._ids = _GivenIds()
        self._made = _Collected()
        provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=self._ids)
        provider.add_span_processor(self._made)
        self._tracer = provider.get_tracer("radixgate", process.get("service.version"))

    def export(self, spans: Sequence[Span]) -> bool:
        for span in spans:
            self._make(span)
        made = self._made.take()
        return not made or self._exporter.export(made) is SpanExportResult.SUCCESS

    def stop(self) -> None:
        self._exporter.shutdown(_STOP_MS)

    def _make(self, span: Span) -> None:
        """Let the SDK make its own span of ours."""
        self._ids.next = (int(span.context.trace_id, 16), int(span.context.span_id, 16))
        made = self._tracer.start_span(
            span.name, _context_of(span), _KINDS[span.kind], span.attributes, start_time=span.start_ns
        )
        for event in span.events:
            made.add_event(event.name, event.attributes, event.at_ns)
        if span.error is not None:
            made.set_status(trace.Status(trace.StatusCode.ERROR, span.error))
        made.end(span.end_ns)


def _context_of(span: Span) -> Context:
    """Return the context in which a span is a child of its parent."""
    none = Context()
    if span.parent_id is None:
        return none
    parent = trace.SpanContext(
        int(span.context.trace_id, 16),
        int(span.parent_id, 16),
        is_remote=span.kind is Kind.SERVER,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), none)


class _GivenIds(IdGenerator):
    """The ids that our spans have already."""

    next = (0, 0)

    def generate_trace_id(self) -> int:
        return self.next[0]

    def generate_span_id(self) -> int:
        return self.next[1]


class _Collected(SpanProcessor):
    """Keeps the SDK's spans until they are taken."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        spans, self._spans = self._spans, []
        return spans
