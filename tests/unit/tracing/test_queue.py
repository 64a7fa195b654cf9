"""Spans on their way out: nobody waits for them, what is lost is counted, and an end comes in time."""

import threading
import time
from collections.abc import Callable, Sequence

import pytest
from structlog.testing import capture_logs

from tests.processes import wait_until
from tracing.queue import MAX_BATCH, SpanQueue
from tracing.spans import Span
from tracing.traceparent import SpanContext

SPAN = Span("s", SpanContext("1" * 32, "2" * 16), None, 0, 1)


class Collector:
    """An exporter that does what a test wants."""

    def __init__(self, answer: Callable[[], bool] = lambda: True) -> None:
        self.batches: list[int] = []
        self.stopped = threading.Event()
        self._answer = answer

    def export(self, spans: Sequence[Span]) -> bool:
        self.batches.append(len(spans))
        return self._answer()

    def stop(self) -> None:
        self.stopped.set()


def test_an_end_brings_all_that_is_left() -> None:
    collector = Collector()
    queue = SpanQueue(collector, delay_s=600.0)
    queue.put([SPAN] * (MAX_BATCH + 9))
    queue.close(30.0)
    assert sum(collector.batches) == MAX_BATCH + 9
    assert max(collector.batches) <= MAX_BATCH
    assert (queue.exported, queue.dropped) == (MAX_BATCH + 9, 0)
    assert collector.stopped.is_set()


def test_single_spans_leave_without_an_end() -> None:
    collector = Collector()
    queue = SpanQueue(collector, delay_s=0.01)
    queue.put([SPAN])
    wait_until(lambda: queue.exported == 1, timeout_s=30, what="exported")
    queue.close(30.0)


def test_a_full_queue_takes_no_more_and_holds_nobody_up() -> None:
    blocked = threading.Event()
    collector = Collector(lambda: blocked.wait(60))
    queue = SpanQueue(collector, max_waiting=100, delay_s=0.01)
    queue.put([SPAN])
    wait_until(lambda: collector.batches == [1], timeout_s=30, what="a batch under way")
    began = time.monotonic()
    for _ in range(1_000):
        queue.put([SPAN, SPAN, SPAN])
    assert time.monotonic() - began < 20  # and not 1,000 times as long as the collector takes
    assert queue.dropped == 2_900
    blocked.set()
    queue.close(30.0)
    assert (queue.exported, queue.dropped) == (101, 2_900)


def test_an_end_is_bounded_when_the_collector_hangs() -> None:
    release = threading.Event()
    queue = SpanQueue(Collector(lambda: release.wait(60)), delay_s=0.01)
    queue.put([SPAN] * (MAX_BATCH * 3))
    with capture_logs() as logs:
        began = time.monotonic()
        queue.close(0.2)
        assert time.monotonic() - began < 20
    release.set()
    assert queue.dropped >= MAX_BATCH * 2
    assert [line["event"] for line in logs] == ["spans dropped: the collector is away, or too slow"]
    queue.put([SPAN])  # too late, and harmless


def broken() -> bool:
    raise RuntimeError("broken on purpose")


@pytest.mark.parametrize("answer", [lambda: False, broken])
def test_what_does_not_arrive_is_counted_and_told_once_in_a_while(answer: Callable[[], bool]) -> None:
    with capture_logs() as logs:
        queue = SpanQueue(Collector(answer), delay_s=0.001)
        for number in range(1, 6):
            queue.put([SPAN])
            wait_until(lambda: queue.dropped == number, timeout_s=30, what="dropped")  # noqa: B023 - called at once
        queue.close(30.0)
    told = [line for line in logs if line["event"].startswith("spans dropped")]
    assert [(line["spans"], line["total"]) for line in told] == [(1, 1), (4, 5)]
