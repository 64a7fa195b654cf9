"""Traces of requests through a real gateway and a real worker, received by OTLP over gRPC."""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from gateway.app import GatewayApp
from tests.fakes.collector import Collector, Received, collecting
from tests.fakes.gateway_stack import RecordingObserver, Stack, channel_to, config_for
from tests.fakes.http_client import ask
from tests.fakes.model import FakeModel
from tests.fakes.worker_stack import config
from tracing.config import TracingConfig
from tracing.opening import open_sink, tracer_for
from tracing.spans import SpanSink
from worker.app import WorkerApp

PROMPT = "a prompt that nobody else shall read"
GENERATE = "radixgate.v1.InferenceService/Generate"
CLOSE_S = 20.0


@asynccontextmanager
async def traced(
    redis_url: str, endpoint: str | None, ratio: float = 1.0, asked_per_minute: int = 10, new: bool = True
) -> AsyncIterator[tuple[Stack, tuple[SpanSink, SpanSink]]]:
    """Run a worker and a gateway, each with a sink of its own as if in a process of its own."""
    settings = TracingConfig(endpoint=endpoint, sample_ratio=ratio, asked_per_minute=asked_per_minute)
    sinks = tuple(open_sink(settings, {"service.name": f"radixgate-{name}"}) for name in ("gateway", "worker"))
    worker = WorkerApp(config(), FakeModel(), sinks[1])
    where = await worker.start()
    try:
        observer, tracer = RecordingObserver(), tracer_for(settings, sinks[0])
        app = GatewayApp(config_for(redis_url, [where.grpc]), observer, tracer=tracer)
        async with app, channel_to(app.address) as channel:
            stack = Stack(app, observer, channel)
            await (stack.add_tenant("acme") if new else stack.add_key("acme"))
            await stack.ready()
            yield stack, (sinks[0], sinks[1])
    finally:
        await worker.stop(drain_timeout_s=0.0)
        for sink in sinks:
            await asyncio.to_thread(sink.close, CLOSE_S)


def asking(trace_id: str, flags: str = "01") -> tuple[tuple[str, str], ...]:
    return (("traceparent", f"00-{trace_id}-{'c' * 16}-{flags}"),)


def named(spans: Sequence[Received], name: str) -> Received:
    (found,) = [span for span in spans if span.name == name]
    return found


def assert_one_tree(spans: Sequence[Received]) -> None:
    """Every span but one has its parent among the others, and lies within it; none is there twice."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    roots = [span for span in spans if span.parent_id not in by_id]
    assert [span.parent_id for span in roots] == ["c" * 16]
    for span in spans:
        parent = by_id.get(span.parent_id)
        if parent is not None:
            slack_ns = 5_000_000  # each side of the wire reads its clocks for itself
            assert parent.start_ns - slack_ns <= span.start_ns <= span.end_ns, (span, parent)
            assert span.end_ns <= parent.end_ns + slack_ns or span.name in {"sequence", "decode"}, (span, parent)


async def test_one_trace_spans_client_gateway_and_worker(redis_url: str) -> None:
    trace_id = secrets.token_hex(16)
    with collecting() as collector:
        async with traced(redis_url, collector.address) as (stack, _):
            began = time.monotonic()
            done = await stack.generate(
                text=PROMPT, sampling={"max_new_tokens": 40, "ignore_eos": True}, metadata=asking(trace_id),
                request_id="my-request",
            )  # fmt: skip
            took = time.monotonic() - began
        spans = collector.of(trace_id)
    assert_one_tree(spans)
    root, stream, sequence = (named(spans, name) for name in (GENERATE, "stream", "sequence"))
    assert (root.kind, stream.kind, sequence.kind) == ("server", "client", "server")
    assert {span.name for span in spans if span.parent_id == root.span_id} == {
        "authenticate", "prepare", "quota", "stream",
    }  # fmt: skip
    assert sequence.parent_id == stream.span_id
    phases = [span for span in spans if span.parent_id == sequence.span_id]
    assert [span.name for span in sorted(phases, key=lambda span: (span.start_ns, span.end_ns))] == [
        "queue", "match", "prefill", "decode",
    ]  # fmt: skip
    services = {span.name: span.resource["service.name"] for span in spans}
    assert {services[n] for n in ("sequence", "decode")} == {"radixgate-worker"}
    assert {services[n] for n in ("stream", "prepare")} == {"radixgate-gateway"}
    # As long as the client saw it: in its call, and the worker's phases in the worker's part of that.
    assert 0 < root.seconds <= took
    assert sum(span.seconds for span in phases) == pytest.approx(sequence.seconds, abs=0.05)
    assert sequence.seconds <= root.seconds + 0.05
    usage = done.usage
    told = {
        "gen_ai.request.model": "fake",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": 40,
        "radixgate.cached_tokens.device": usage.cached.device,
        "radixgate.computed_prompt_tokens": usage.computed_prompt_tokens,
        "gen_ai.response.finish_reasons": ["length"],
        "radixgate.request_id": "my-request",
        "radixgate.tenant": "acme",
    }
    for span in (root, stream):
        assert told.items() <= span.attributes.items()
    assert sequence.attributes["gen_ai.usage.output_tokens"] == 40
    assert sequence.attributes["radixgate.request_id"] == "my-request"
    assert not any(span.failed for span in spans)
    assert "first message" in stream.events


async def test_several_completions_are_told_apart(redis_url: str) -> None:
    trace_id = secrets.token_hex(16)
    with collecting() as collector:
        async with traced(redis_url, collector.address) as (stack, _):
            sampling = {"max_new_tokens": 5, "ignore_eos": True, "n": 3}
            await stack.generate(text=PROMPT, sampling=sampling, metadata=asking(trace_id))
        spans = collector.of(trace_id)
    assert_one_tree(spans)
    sequence = named(spans, "sequence")
    assert sequence.attributes["gen_ai.response.finish_reasons"] == ["length"] * 3
    assert sequence.attributes["gen_ai.usage.output_tokens"] == 15
    branches = [span for span in spans if span.name.startswith("completion")]
    assert {span.name for span in branches} == {"completion 1", "completion 2"}
    assert {span.parent_id for span in branches} == {sequence.span_id}
    for branch in branches:
        assert {span.name for span in spans if span.parent_id == branch.span_id} >= {"queue", "match", "decode"}


async def test_over_http_it_is_the_same_trace_and_no_content_is_in_it(redis_url: str) -> None:
    trace_id = secrets.token_hex(16)
    with collecting() as collector:
        async with traced(redis_url, collector.address) as (stack, _):
            document = {"model": "fake", "prompt": [PROMPT, PROMPT], "max_tokens": 3}
            headers = {**dict(asking(trace_id)), "x-request-id": "over-http"}
            key = stack.keys["acme"]
            answer = await ask(stack.app.http_address, "POST", "/v1/completions", document, key=key, headers=headers)
            assert answer.status == 200, answer.body
        spans = collector.of(trace_id)
    assert_one_tree(spans)
    root = named(spans, "POST /v1/completions")
    assert (root.attributes["http.route"], root.attributes["http.response.status_code"]) == ("/v1/completions", 200)
    assert root.attributes["radixgate.request_id"] == "over-http"
    assert root.attributes["gen_ai.usage.input_tokens"] == 2 * len(PROMPT)
    assert sum(span.name == "sequence" for span in spans) == 2
    written = repr(spans) + repr([span.resource for span in spans])
    assert PROMPT not in written
    assert key not in written


async def test_failures_are_told_in_the_span_where_they_happened(redis_url: str) -> None:
    asked, cancelled, late = (secrets.token_hex(16) for _ in range(3))
    with collecting() as collector:
        async with traced(redis_url, collector.address) as (stack, _):
            await stack.refused(text=PROMPT, sampling={"temperature": -1.0}, metadata=asking(asked))
            many: dict[str, Any] = {"text": PROMPT, "sampling": {"max_new_tokens": 450, "ignore_eos": True}}
            call = stack.call(metadata=asking(cancelled), **many)
            await anext(aiter(call))
            call.cancel()
            with pytest.raises(grpc.aio.AioRpcError):
                await stack.generate(timeout=0.05, metadata=asking(late), **many)
            for trace_id in (cancelled, late):
                await asyncio.to_thread(collector.trace, trace_id, "sequence")
        by_trace = {trace_id: collector.of(trace_id) for trace_id in (asked, cancelled, late)}
    root = named(by_trace[asked], GENERATE)
    assert not root.failed
    assert root.attributes["error.type"] == "INVALID_ARGUMENT"
    assert named(by_trace[asked], "prepare").error == "InvalidRequestError"
    for trace_id in (cancelled, late):
        sequence = named(by_trace[trace_id], "sequence")
        assert sequence.attributes["error.type"] in {"cancelled", "deadline_exceeded"}
        phases = [span for span in by_trace[trace_id] if span.parent_id == sequence.span_id]
        assert sum(span.seconds for span in phases) == pytest.approx(sequence.seconds, abs=0.05)


async def test_a_caller_s_flag_is_heeded_within_its_budget_and_the_share_is_drawn_without_it(redis_url: str) -> None:
    asked, unasked = [secrets.token_hex(16) for _ in range(5)], secrets.token_hex(16)
    with collecting() as collector, capture_logs() as logs:
        async with traced(redis_url, collector.address, ratio=0.0, asked_per_minute=2) as (stack, _):
            for trace_id in asked:
                await stack.generate(text=PROMPT, sampling={"max_new_tokens": 2}, metadata=asking(trace_id))
            await stack.generate(text=PROMPT, sampling={"max_new_tokens": 2}, metadata=asking(unasked, "00"))
            await stack.generate(text=PROMPT, sampling={"max_new_tokens": 2})
    assert {span.trace_id for span in collector.spans} == set(asked[:2])
    ended = [line for line in logs if line["event"] == "stream ended"]
    assert [line.get("trace_id") for line in ended] == [*asked, unasked, None]


async def test_headers_and_attributes_of_the_environment_are_used(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-collector-key=open sesame")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.name=theirs")
    with collecting() as collector:
        async with traced(redis_url, collector.address) as (stack, _):
            await stack.generate(text=PROMPT, sampling={"max_new_tokens": 2})
    assert collector.headers["x-collector-key"] == "open sesame"
    for span in collector.spans:
        assert span.resource["deployment.environment.name"] == "test"
        assert span.resource["service.name"] == "theirs"


async def answers(stack: Stack, number: int = 20) -> list[list[int]]:
    request: dict[str, Any] = {"text": PROMPT, "sampling": {"max_new_tokens": 8, "seed": 7, "ignore_eos": True}}
    done = await asyncio.gather(*(stack.generate(**request) for _ in range(number)))
    return [each.token_ids for each in done]


async def test_requests_do_not_feel_a_collector_that_is_away(redis_url: str) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        async with traced(redis_url, None) as (stack, _):
            expected = await answers(stack)
        began = time.monotonic()
        async with traced(redis_url, endpoint, new=False) as (stack, sinks):
            assert await answers(stack) == expected
            for sink in sinks:
                await asyncio.to_thread(sink.close, 0.5)
        assert time.monotonic() - began < 60
        assert all(sink.dropped > 0 for sink in sinks)  # type: ignore[attr-defined]


async def test_requests_do_not_feel_a_collector_that_hangs(redis_url: str) -> None:
    with collecting() as collector:
        collector.hold.clear()
        async with traced(redis_url, collector.address) as (stack, sinks):
            first = await answers(stack)
            await asyncio.to_thread(wait_for_calls, collector)
            assert await answers(stack) == first  # while both processes' exporters wait for it
            assert collector.spans == []
            for sink in sinks:
                await asyncio.to_thread(sink.close, 0.5)
            assert await answers(stack) == first


def wait_for_calls(collector: Collector) -> None:
    deadline = time.monotonic() + 60
    while collector.calls < 2:
        assert time.monotonic() < deadline, "nobody exports"
        time.sleep(0.01)
