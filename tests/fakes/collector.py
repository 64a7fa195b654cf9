"""A collector: receives OTLP over gRPC as real ones do, and keeps what arrives."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.processes import wait_until


class Received:
    """One span, with what its process says of itself."""

    def __init__(self, span: Span, resource: dict[str, Any]) -> None:
        self.resource = resource
        self.name = span.name
        self.kind = Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower()
        self.trace_id = span.trace_id.hex()
        self.span_id = span.span_id.hex()
        self.parent_id = span.parent_span_id.hex()
        self.start_ns = span.start_time_unix_nano
        self.end_ns = span.end_time_unix_nano
        self.attributes = {each.key: _value(each.value) for each in span.attributes}
        self.events = [event.name for event in span.events]
        self.failed = span.status.code == span.status.STATUS_CODE_ERROR
        self.error = span.status.message

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def __repr__(self) -> str:
        return f"{self.resource.get('service.name')}: {self.name} {self.seconds:.4f} s {self.attributes}"


class Collector(TraceServiceServicer):
    """`hold` makes who sends wait; headers are those that came last."""

    def __init__(self) -> None:
        self.hold = threading.Event()
        self.hold.set()
        self.spans: list[Received] = []
        self.headers: dict[str, str | bytes] = {}
        self.calls = 0
        self.address = ""

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:  # noqa: N802
        self.calls += 1
        self.headers = dict(context.invocation_metadata())
        self.hold.wait(60)
        for of_resource in request.resource_spans:
            resource = {each.key: _value(each.value) for each in of_resource.resource.attributes}
            self.spans += [Received(span, resource) for scope in of_resource.scope_spans for span in scope.spans]
        return ExportTraceServiceResponse()

    def trace(self, trace_id: str, *roots: str, timeout_s: float = 60.0) -> list[Received]:
        """Wait until spans of these names have come of a trace; return all there are of it."""
        wait_until(
            lambda: set(roots) <= {span.name for span in self.of(trace_id)}, timeout_s=timeout_s, what=f"spans {roots}"
        )
        return self.of(trace_id)

    def of(self, trace_id: str) -> list[Received]:
        return [span for span in self.spans if span.trace_id == trace_id]


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(4))
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    collector.address = f"http://127.0.0.1:{port}"
    server.start()
    try:
        yield collector
    finally:
        collector.hold.set()
        server.stop(None)


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
