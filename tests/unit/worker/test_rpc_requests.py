"""What a worker logs and records of the requests that are here, whatever end they come to."""

import logging
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from hicache.cache import Hit
from radixgate.v1 import inference_pb2, worker_pb2
from tracing.spans import Span
from worker.engine.ports import Admission, FinishReason, SequenceOutput
from worker.engine.timeline import Course, Phase, Timeline
from worker.errors import Failure, FailureCode
from worker.rpc.requests import OpenRequests

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CANCELLED = Failure(FailureCode.CANCELLED, "the request was cancelled")


class Sink:
    wanted = True

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def put(self, spans: Sequence[Span]) -> None:
        self.spans += spans

    def close(self, timeout_s: float) -> None:
        pass

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def submit(traceparent: str = TRACEPARENT, n: int = 1) -> worker_pb2.Submit:
    sampling = inference_pb2.SamplingParams(n=n)
    return worker_pb2.Submit(sequence_id=1, request_id="r1", tenant="acme", traceparent=traceparent, sampling=sampling)


def paused_once() -> Course:
    course = Course(10.0)
    course.prefetched(10.5)
    course.started(11.0)
    course.loads(11.25)
    course.computes(12.0)
    course.first_token(14.0)
    course.paused(15.0)
    course.started(17.0)
    course.computes(17.0)
    course.ended(20.0)
    return course


def test_phases_of_a_sequence_that_loads_and_is_paused_add_up() -> None:
    timeline = paused_once().timeline(1, 9, is_last=True)
    assert [(each.phase, each.start, each.end) for each in timeline.intervals] == [
        (Phase.QUEUE, 10.0, 11.0),
        (Phase.MATCH, 11.0, 11.25),
        (Phase.LOAD, 11.25, 12.0),
        (Phase.PREFILL, 12.0, 14.0),
        (Phase.DECODE, 14.0, 15.0),
        (Phase.PAUSE, 15.0, 17.0),
        (Phase.MATCH, 17.0, 17.0),
        (Phase.DECODE, 17.0, 20.0),
    ]
    assert sum(timeline.seconds.values()) == 10.0
    assert timeline.seconds[Phase.DECODE] == 4.0


def test_moments_that_go_backwards_make_no_negative_phase() -> None:
    course = Course(10.0)
    course.started(12.0)
    course.computes(11.0)
    course.ended(9.0)
    course.ended(50.0)
    timeline = course.timeline(0, 0, is_last=True)
    assert timeline.ended_at == 12.0
    assert all(interval.end >= interval.start for interval in timeline.intervals)


def test_who_is_paused_for_ever_takes_no_memory_for_it() -> None:
    course = Course(0.0)
    for number in range(10_000):
        course.started(number + 0.25)
        course.computes(number + 0.25)
        course.paused(number + 0.75)
    course.ended(10_000.0)
    timeline = course.timeline(10_000, 0, is_last=True)
    assert len(timeline.intervals) < 100
    assert timeline.num_omitted == 30_001 - len(timeline.intervals)
    assert sum(timeline.seconds.values()) == pytest.approx(10_000.0)


def test_spans_are_the_phases_at_the_same_distances() -> None:
    sink = Sink()
    requests = OpenRequests("w", sink)
    requests.began((0, 1), submit())
    requests.told(SequenceOutput((0, 1), admission=Admission(8, Hit(device=2, host=3))))
    requests.told(
        SequenceOutput((0, 1), finish=FinishReason.LENGTH, timeline=paused_once().timeline(1, 9, is_last=True))
    )
    assert len(requests) == 0
    (sequence,) = sink.named("sequence")
    assert sequence.parent_id == "00f067aa0ba902b7"
    assert sequence.attributes["radixgate.cached_tokens.host"] == 3
    assert sequence.attributes["radixgate.worker"] == "w"
    assert sequence.attributes["gen_ai.response.finish_reasons"] == ("length",)
    (queue,), (prefetch,) = sink.named("queue"), sink.named("prefetch")
    assert (queue.parent_id, prefetch.parent_id) == (sequence.context.span_id, queue.context.span_id)
    assert prefetch.end_ns - prefetch.start_ns == pytest.approx(0.5e9)
    (pause,) = sink.named("pause")
    assert pause.start_ns - queue.start_ns == pytest.approx(5e9)
    assert pause.end_ns - pause.start_ns == pytest.approx(2e9)
    assert len(sink.named("decode")) == 2
    assert {span.context.trace_id for span in sink.spans} == {"4bf92f3577b34da6a3ce929d0e0e4736"}


def test_a_span_says_how_much_its_completions_came_with() -> None:
    sink = Sink()
    requests = OpenRequests("w", sink)
    continued = [worker_pb2.ContinuedCompletion(index=index, token_ids=[1] * 4) for index in (0, 2)]
    message = submit(n=3)
    message.continued.extend(continued)
    requests.began((0, 1), message)
    requests.told(SequenceOutput((0, 1), index=2, finish=FinishReason.STOP, timeline=last(False)))
    requests.told(SequenceOutput((0, 1), index=0, finish=FinishReason.STOP, timeline=last(True)))
    assert len(requests) == 0
    (sequence,) = sink.named("sequence")
    assert sequence.attributes["radixgate.continued_tokens"] == 8
    assert sequence.attributes["gen_ai.request.choice.count"] == 2


def last(is_last: bool) -> Timeline:
    course = Course(1.0)
    course.ended(2.0)
    return course.timeline(0, 0, is_last=is_last)


def test_a_request_of_several_completions_ends_with_the_last_of_them_also_when_it_fails() -> None:
    sink = Sink()
    requests = OpenRequests("w", sink)
    requests.began((0, 1), submit(n=3))
    requests.told(SequenceOutput((0, 1), finish=FinishReason.STOP, timeline=last(False), index=1))
    requests.told(SequenceOutput((0, 1), finish=CANCELLED, timeline=last(False), index=0))
    assert (len(requests), sink.named("sequence")) == (1, [])
    requests.told(SequenceOutput((0, 1), finish=CANCELLED, timeline=last(True), index=2))
    (sequence,) = sink.named("sequence")
    assert (len(requests), sequence.error) == (0, None)  # what a client cancels is nobody's fault
    assert sequence.attributes["error.type"] == "cancelled"
    assert sequence.attributes["gen_ai.response.finish_reasons"] == ("stop", "cancelled", "cancelled")


def test_a_request_that_never_became_a_sequence_has_a_span_that_says_why() -> None:
    sink = Sink()
    requests = OpenRequests("w", sink)
    requests.began((0, 1), submit())
    requests.refused((0, 1), Failure(FailureCode.OVERLOADED, "the line is full"))
    (sequence,) = sink.spans
    assert (sequence.error, sequence.attributes["error.type"]) == ("overloaded", "overloaded")
    assert sequence.end_ns >= sequence.start_ns
    assert len(requests) == 0


@pytest.mark.parametrize("traceparent", ["", "00-zz", TRACEPARENT.removesuffix("1") + "0"])
def test_what_is_not_traced_is_not_recorded(traceparent: str) -> None:
    sink = Sink()
    requests = OpenRequests("w", sink)
    requests.began((0, 1), submit(traceparent))
    requests.told(SequenceOutput((0, 1), finish=FinishReason.STOP, timeline=last(True)))
    assert (len(requests), sink.spans) == (0, [])


def test_each_end_is_one_line_for_who_looks_closely() -> None:
    logger = logging.getLogger("worker.rpc.requests")
    timeline = paused_once().timeline(1, 9, is_last=True)
    output = SequenceOutput((0, 1), finish=FinishReason.LENGTH, timeline=timeline)
    requests = OpenRequests()
    told = []
    before = logger.level
    try:
        for level in (logging.DEBUG, logging.INFO):
            logger.setLevel(level)
            requests.began((0, 1), submit())
            with capture_logs() as logs:
                requests.told(output)
            told.append(logs)
    finally:
        logger.setLevel(before)
    (line,), nothing = told
    assert nothing == []
    assert {"event": "sequence ended", "request_id": "r1", "end": "length", "seconds": 10.0, "pauses": 1}.items() <= (
        line.items()
    )
    assert (line["queue_s"], line["load_s"], line["prefill_s"], line["pause_s"]) == (1.0, 0.75, 2.0, 2.0)
    assert line["first_token_s"] == 4.0
