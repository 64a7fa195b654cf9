"""What is recorded of a gateway's calls."""

from collections.abc import Sequence
from typing import Any

import pytest

from tracing.calls import MAX_STAGES, NO_TRACE, CallTrace, NoTracer, SamplingTracer
from tracing.sampling import Sampler
from tracing.spans import Kind, Span
from tracing.traceparent import parse_traceparent

ASKED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Sink:
    wanted = True

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def put(self, spans: Sequence[Span]) -> None:
        self.spans += spans

    def close(self, timeout_s: float) -> None:
        pass


def begun(ratio: float, *headers: tuple[str, str], asked_per_minute: int = 0) -> tuple[CallTrace, Sink]:
    sink = Sink()
    tracer = SamplingTracer(Sampler(ratio, asked_per_minute), sink)
    return tracer.begin("p.Service/Method", {"rpc.system.name": "grpc"}, headers, 10.0), sink


def nothing() -> dict[str, Any]:
    return {}


def unwanted() -> dict[str, Any]:
    raise AssertionError("nobody wants to know")


def test_a_call_and_its_stages_are_one_trace() -> None:
    trace, sink = begun(1.0, ("traceparent", ASKED))
    with trace.stage("authenticate"):
        pass
    trace.known("acme", lambda: {"radixgate.tenant": "acme"})
    with trace.stage("stream", Kind.CLIENT) as stage:
        carried = parse_traceparent(stage.traceparent)
        stage.event("first message")
        stage.describe(lambda: {"gen_ai.request.model": "m" * 1_000, "radixgate.adapter": ""})
    trace.end("OK", lambda: {"rpc.response.status_code": "OK"})

    root, authenticate, stream = sink.spans
    assert root.context.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert root.parent_id == "00f067aa0ba902b7"
    assert (root.name, root.kind, root.error) == ("p.Service/Method", Kind.SERVER, None)
    assert root.attributes == {
        "rpc.system.name": "grpc", "radixgate.tenant": "acme", "rpc.response.status_code": "OK",
    }  # fmt: skip
    assert (authenticate.name, stream.name) == ("authenticate", "stream")
    assert {authenticate.parent_id, stream.parent_id} == {root.context.span_id}
    assert carried == stream.context
    assert stream.attributes == {"gen_ai.request.model": "m" * 256}
    assert [event.name for event in stream.events] == ["first message"]
    assert root.start_ns <= authenticate.start_ns <= authenticate.end_ns <= stream.start_ns <= stream.end_ns
    assert stream.end_ns <= root.end_ns
    assert len({span.context.span_id for span in sink.spans}) == 3


def test_a_call_that_is_not_taken_costs_nothing_more_and_carries_nothing_on() -> None:
    trace, sink = begun(0.0, ("traceparent", ASKED))
    trace.known("acme", unwanted)
    with trace.stage("stream") as stage:
        assert stage.traceparent == ""
        stage.describe(unwanted)
    trace.describe(unwanted)
    trace.sum_up(unwanted)
    trace.end("OK", unwanted)
    assert sink.spans == []


def test_a_caller_has_its_call_recorded_by_the_flag() -> None:
    trace, sink = begun(0.0, ("traceparent", ASKED), asked_per_minute=1)
    trace.known("acme", nothing)
    trace.end("OK", nothing)
    assert len(sink.spans) == 1
    trace, sink = begun(0.0, ("traceparent", ASKED.removesuffix("1") + "0"), asked_per_minute=1)
    trace.known("acme", nothing)
    trace.end("OK", nothing)
    assert sink.spans == []


@pytest.mark.parametrize("value", ["", "00-0-0-01", f"{ASKED}-x"])
def test_a_broken_traceparent_begins_a_trace_of_its_own(value: str) -> None:
    trace, sink = begun(1.0, ("traceparent", value))
    trace.known("acme", nothing)
    trace.end("OK", nothing)
    (root,) = sink.spans
    assert root.parent_id is None
    assert trace.labels == {"trace_id": root.context.trace_id}


def test_the_log_names_a_trace_that_somebody_records() -> None:
    assert begun(0.0, ("traceparent", ASKED))[0].labels == {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"}
    trace, _ = begun(0.0)
    trace.known("acme", unwanted)
    assert trace.labels == NO_TRACE.labels == {}


def test_how_a_stage_failed_is_told_in_a_word_and_never_in_the_error_s_own() -> None:
    trace, sink = begun(1.0)
    with pytest.raises(ValueError, match="secret prompt"):
        with trace.stage("prepare"):
            raise ValueError("secret prompt")
    trace.end("INTERNAL", nothing)
    root, prepare = sink.spans
    assert (root.error, root.attributes["error.type"]) == ("INTERNAL", "INTERNAL")
    assert (prepare.error, prepare.attributes) == ("ValueError", {"error.type": "ValueError"})
    assert "secret" not in str(sink.spans)


def test_a_caller_s_own_fault_is_no_error_of_the_gateway() -> None:
    trace, sink = begun(1.0)
    trace.end("INVALID_ARGUMENT", nothing)
    assert sink.spans[0].error is None
    assert sink.spans[0].attributes["error.type"] == "INVALID_ARGUMENT"


def test_sums_add_up_over_the_prompts_of_one_call() -> None:
    trace, sink = begun(1.0)
    for number in (3, 4):
        trace.sum_up(lambda number=number: {"tokens": number, "reasons": ("stop",)})  # type: ignore[misc]
    trace.end("OK", nothing)
    assert sink.spans[0].attributes["tokens"] == 7
    assert sink.spans[0].attributes["reasons"] == ("stop", "stop")


def test_a_call_of_many_stages_is_bounded() -> None:
    trace, sink = begun(1.0)
    for _ in range(MAX_STAGES + 5):
        with trace.stage("stream") as stage:
            last = stage.traceparent
    trace.end("OK", nothing)
    assert len(sink.spans) == MAX_STAGES + 1
    assert sink.spans[0].attributes["radixgate.omitted_stages"] == 5
    assert last == ""


def test_where_nothing_is_recorded_nothing_is_asked() -> None:
    trace = NoTracer().begin("m", {}, [("traceparent", ASKED)], 0.0)
    assert trace is NO_TRACE
    with trace.stage("stream") as stage:
        stage.describe(unwanted)
        stage.event("first message")
        assert stage.traceparent == ""
    trace.known("acme", unwanted)
    trace.end("OK", unwanted)
