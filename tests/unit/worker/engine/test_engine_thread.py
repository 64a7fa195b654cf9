"""The engine behind queues: outputs arrive, ends are told, nothing hangs and nothing spins."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue

import pytest

from hicache.cache import Holdings, PrefixCache
from hicache.events import CacheDigest, EventLog, Snapshot
from hicache.radix.naming import PageNames
from tests.unit.worker.engine.harness import TENANT_A, Recorder, Rig, answer, make_request, prompt
from worker.batch import AsyncExecutor, Executor
from worker.config import EngineConfig
from worker.engine import EngineThread, FinishReason, Load, SequenceId, SequenceOutput
from worker.engine.delivery import Deliver
from worker.engine.executors import InlineExecutor, ThreadExecutor
from worker.engine.ports import CacheContents, CacheNews
from worker.errors import Failure, FailureCode

DEADLINE_S = 10.0


class Consumer:
    """Collects what is delivered."""

    def __init__(self) -> None:
        self.outputs: list[SequenceOutput] = []
        self.loads: list[Load] = []
        self.cache: list[CacheNews | Snapshot] = []  # what was told of the cache, in order
        self.changed = threading.Condition()

    def __call__(self, outputs: Sequence[SequenceOutput], load: Load, cache: CacheNews | None) -> None:
        with self.changed:
            self.outputs.extend(outputs)
            self.loads.append(load)
            if cache is not None:
                self.cache.append(cache)
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, DEADLINE_S), "it didn't happen in time"

    def wait_for_end(self, *numbers: int) -> None:
        self.wait_for(lambda: all(self.finish(number) is not None for number in numbers))

    def tokens(self, number: int) -> list[int]:
        return [token for output in self._of(number) for token in output.token_ids]

    def finish(self, number: int) -> FinishReason | Failure | None:
        return next((output.finish for output in self._of(number) if output.finish is not None), None)

    def code(self, number: int) -> FailureCode | None:
        finish = self.finish(number)
        return finish.code if isinstance(finish, Failure) else None

    def _of(self, number: int) -> list[SequenceOutput]:
        wanted: SequenceId = (0, number)
        return [output for output in self.outputs if output.sequence_id == wanted]


class Gate:
    """Makes forward passes stand still while it is closed."""

    def __init__(self, rig: Rig) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        rig.executor.before_run = self._pass

    def _pass(self) -> None:
        self.entered.set()
        assert self.open.wait(DEADLINE_S)


class FaultyOnce(Recorder):
    """An observer that raises when it is told of the first step."""

    def stepped(self, num_tokens: int, num_sequences: int, duration_s: float) -> None:
        super().stepped(num_tokens, num_sequences, duration_s)
        if len(self.steps) == 1:
            raise RuntimeError("not the executor's fault")


def timed_rig(
    config: EngineConfig | None = None,
    observer: Recorder | None = None,
    executor: Callable[[Executor], AsyncExecutor] = InlineExecutor,
) -> Rig:
    return Rig(config=config, clock=time.monotonic, observer=observer, running=executor)


@contextmanager
def running(rig: Rig, consumer: Deliver) -> Iterator[EngineThread]:
    thread = EngineThread(rig.engine, consumer)
    thread.start()
    try:
        yield thread
    finally:
        assert thread.stop(DEADLINE_S)


def test_answers_arrive_from_a_thread_that_is_not_the_caller() -> None:
    consumer = Consumer()
    with running(timed_rig(), consumer) as thread:
        for number in range(5):
            thread.submit(make_request(number, prompt(20, number)))
        consumer.wait_for_end(0, 1, 2, 3, 4)
    for number in range(5):
        assert consumer.tokens(number) == answer(prompt(20, number), 4)


def test_many_threads_may_submit_and_cancel() -> None:
    rig, consumer = timed_rig(), Consumer()

    def client(first: int) -> None:
        for number in range(first, first + 20):
            thread.submit(make_request(number, prompt(10, number), max_new_tokens=20))
            if number % 3 == 0:
                thread.cancel((0, number))

    with running(rig, consumer) as thread:
        clients = [threading.Thread(target=client, args=(first,)) for first in (0, 20, 40, 60)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        consumer.wait_for_end(*range(80))
    rig.assert_nothing_is_held()


def test_an_idle_engine_uses_no_cpu() -> None:
    consumer = Consumer()
    with running(timed_rig(), consumer) as thread:
        thread.submit(make_request(0))
        consumer.wait_for_end(0)
        num_steps = len(consumer.loads)
        before = time.process_time()
        threading.Event().wait(0.3)
        assert time.process_time() - before < 0.05
        assert len(consumer.loads) == num_steps


def test_the_news_of_a_step_arrive_while_the_next_pass_stands_still() -> None:
    rig, consumer = timed_rig(executor=ThreadExecutor), Consumer()
    may_run = threading.Semaphore(0)

    def has_tokens(num_tokens: int) -> bool:
        return len(consumer.tokens(0)) == num_tokens

    rig.executor.before_run = lambda: may_run.acquire(timeout=DEADLINE_S)
    with running(rig, consumer) as thread:
        thread.submit(make_request(0, max_new_tokens=4))
        for num_passes in range(1, 5):
            may_run.release()
            consumer.wait_for(partial(has_tokens, num_passes))
            assert rig.executor.num_runs <= num_passes + 1
        consumer.wait_for_end(0)
    assert consumer.tokens(0) == answer([1, 2, 3], 4)


def test_cancelling_ends_a_sequence_that_would_go_on() -> None:
    rig, consumer = timed_rig(), Consumer()
    with running(rig, consumer) as thread:
        thread.submit(make_request(0, max_new_tokens=9000))
        consumer.wait_for(lambda: len(consumer.tokens(0)) >= 5)
        thread.cancel((0, 0))
        consumer.wait_for_end(0)
        assert consumer.code(0) is FailureCode.CANCELLED
        consumer.wait_for(lambda: consumer.loads[-1].running == 0)
    rig.assert_nothing_is_held()


def test_a_deadline_is_kept_even_if_the_sequence_can_never_start() -> None:
    rig, consumer = timed_rig(), Consumer()
    # Somebody else holds the whole pool.
    with rig.cache.acquire(make_request(9).key, now=0.0) as foreign:
        assert foreign.reserve(rig.cache.num_slots, now=0.0)
        with running(rig, consumer) as thread:
            thread.submit(make_request(0, deadline=time.monotonic() + 0.2))
            consumer.wait_for_end(0)
    assert consumer.code(0) is FailureCode.DEADLINE_EXCEEDED


def test_a_stuck_consumer_does_not_stop_the_engine() -> None:
    rig, stuck = timed_rig(), threading.Event()

    def deliver(outputs: Sequence[SequenceOutput], load: Load, cache: CacheNews | None) -> None:
        stuck.wait(DEADLINE_S)

    thread = EngineThread(rig.engine, deliver)
    thread.start()
    thread.submit(make_request(0, max_new_tokens=50))
    deadline = time.monotonic() + DEADLINE_S
    while rig.observer.outcomes != ["length"] and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert rig.observer.outcomes == ["length"]
    stuck.set()
    assert thread.stop(DEADLINE_S)


def test_a_consumer_that_raises_gets_the_next_outputs_all_the_same() -> None:
    consumer, failures = Consumer(), [RuntimeError("consumer at fault")]

    def deliver(outputs: Sequence[SequenceOutput], load: Load, cache: CacheNews | None) -> None:
        if failures:
            raise failures.pop()
        consumer(outputs, load, cache)

    with running(timed_rig(), deliver) as thread:
        thread.submit(make_request(0))
        consumer.wait_for_end(0)


def test_a_step_that_raises_fails_those_who_were_there_and_the_engine_goes_on() -> None:
    rig, consumer = timed_rig(observer=FaultyOnce()), Consumer()
    with running(rig, consumer) as thread:
        thread.submit(make_request(0))
        consumer.wait_for_end(0)
        assert consumer.code(0) is FailureCode.INTERNAL
        thread.submit(make_request(1, [7, 8]))
        consumer.wait_for_end(1)
    assert consumer.tokens(1) == answer([7, 8], 4)
    rig.assert_nothing_is_held()


def test_a_submit_under_a_living_id_is_dropped_and_hurts_nobody() -> None:
    rig, consumer = timed_rig(), Consumer()
    gate = Gate(rig)
    with running(rig, consumer) as thread:
        thread.submit(make_request(0, [1, 2]))
        thread.submit(make_request(0, [3, 4]))
        gate.open.set()
        consumer.wait_for_end(0)
    assert consumer.tokens(0) == answer([1, 2], 4)


def test_draining_refuses_the_new_and_finishes_the_old() -> None:
    rig, consumer = timed_rig(), Consumer()
    gate = Gate(rig)
    with running(rig, consumer) as thread:
        thread.submit(make_request(0, max_new_tokens=20))
        assert gate.entered.wait(DEADLINE_S)
        drained: list[bool] = []
        drain = threading.Thread(target=lambda: drained.append(thread.drain(DEADLINE_S)))
        drain.start()
        gate.open.set()
        drain.join()
        assert drained == [True]
        thread.submit(make_request(1))
        consumer.wait_for_end(0, 1)
    assert len(consumer.tokens(0)) == 20
    assert consumer.code(1) is FailureCode.SHUTTING_DOWN


def test_draining_ends_at_its_deadline() -> None:
    rig, consumer = timed_rig(EngineConfig(max_running=1)), Consumer()
    rig.executor.before_run = lambda: threading.Event().wait(0.01)
    with running(rig, consumer) as thread:
        thread.submit(make_request(0, max_new_tokens=9000))
        thread.submit(make_request(1, max_new_tokens=9000))
        consumer.wait_for(lambda: len(consumer.tokens(0)) > 0)
        assert not thread.drain(0.1)
        consumer.wait_for_end(0, 1)
    assert consumer.code(0) is consumer.code(1) is FailureCode.SHUTTING_DOWN
    rig.assert_nothing_is_held()


def test_draining_an_idle_engine_returns_at_once() -> None:
    with running(timed_rig(), Consumer()) as thread:
        before = time.monotonic()
        assert thread.drain(DEADLINE_S)
        assert time.monotonic() - before < DEADLINE_S / 2


def test_stopping_tells_everyone() -> None:
    rig, consumer = timed_rig(EngineConfig(max_running=1)), Consumer()
    with running(rig, consumer) as thread:
        thread.submit(make_request(0, max_new_tokens=9000))
        thread.submit(make_request(1, max_new_tokens=9000))
        consumer.wait_for(lambda: len(consumer.tokens(0)) > 0)
    assert consumer.code(0) is consumer.code(1) is FailureCode.SHUTTING_DOWN
    rig.assert_nothing_is_held()


def test_after_the_stop_a_submit_is_answered_and_a_cancel_ignored() -> None:
    consumer = Consumer()
    with running(timed_rig(), consumer) as thread:
        pass
    thread.submit(make_request(0))
    thread.cancel((0, 0))
    assert consumer.code(0) is FailureCode.SHUTTING_DOWN
    assert thread.stop()
    assert thread.drain(1.0)


def test_a_forward_pass_that_hangs_does_not_hang_the_stop() -> None:
    rig = timed_rig()
    gate = Gate(rig)
    thread = EngineThread(rig.engine, Consumer())
    thread.start()
    thread.submit(make_request(0))
    assert gate.entered.wait(DEADLINE_S)
    assert not thread.stop(0.1)
    gate.open.set()
    assert thread.stop(DEADLINE_S)


def test_submission_counts_from_the_call_not_from_when_the_engine_sees_it() -> None:
    rig, consumer = timed_rig(EngineConfig(max_running=2)), Consumer()
    gate = Gate(rig)
    with running(rig, consumer) as thread:
        thread.submit(make_request(0))
        assert gate.entered.wait(DEADLINE_S)
        thread.submit(make_request(1, [8, 9]))
        threading.Event().wait(0.1)
        gate.open.set()
        consumer.wait_for_end(0, 1)
    assert rig.observer.queue_waits[1] >= 0.1


@pytest.mark.parametrize("num_requests", [0, 3])
def test_no_thread_is_left_behind(num_requests: int) -> None:
    rig = timed_rig()
    thread = EngineThread(rig.engine, Consumer(), name="leftover")
    thread.start()
    for number in range(num_requests):
        thread.submit(make_request(number))
    assert thread.stop(DEADLINE_S)
    assert not [each.name for each in threading.enumerate() if each.name.startswith("leftover")]


def test_questions_about_the_cache_are_answered_between_two_steps() -> None:
    consumer, answers = Consumer(), SimpleQueue[object]()
    with running(timed_rig(), consumer) as thread:
        thread.submit(make_request(0, prompt(20), max_new_tokens=4))
        consumer.wait_for_end(0)
        assert thread.describe_cache(answers.put)
        contents = answers.get(timeout=DEADLINE_S)
        assert isinstance(contents, CacheContents)
        assert [(each.tenant, each.device) for each in contents.tenants] == [("a", 23)]
        assert thread.drop_cache([TENANT_A], answers.put)
        assert answers.get(timeout=DEADLINE_S) == Holdings(23, 0)
    assert not thread.describe_cache(answers.put)
    assert not thread.drop_cache([TENANT_A], answers.put)
    assert answers.empty()


def test_a_question_that_fails_is_answered_too_and_the_engine_goes_on() -> None:
    consumer, answers = Consumer(), SimpleQueue[object]()
    with running(timed_rig(), consumer) as thread:
        # No namespace, and nothing that has a hash.
        assert thread.drop_cache([[]], answers.put)  # type: ignore[list-item]
        assert answers.get(timeout=DEADLINE_S) is None
        thread.submit(make_request(0, prompt(20), max_new_tokens=4))
        consumer.wait_for_end(0)
    assert consumer.finish(0) is FinishReason.LENGTH


def test_what_was_asked_before_the_end_is_answered() -> None:
    rig, answers = timed_rig(), SimpleQueue[object]()
    with running(rig, Consumer()) as thread:
        gate = Gate(rig)
        thread.submit(make_request(0, prompt(20)))
        assert gate.entered.wait(DEADLINE_S)
        assert thread.describe_cache(answers.put)
        gate.open.set()
    assert isinstance(answers.get(timeout=DEADLINE_S), CacheContents)


# The cache, as it is told


def logged_rig() -> Rig:
    """A rig whose cache tells of pages of four tokens."""
    return Rig(
        clock=time.monotonic,
        cache=lambda executor: PrefixCache(10_000, events=EventLog(PageNames(4, b"seed"))),
    )


def test_what_a_step_changes_in_the_cache_is_told_with_its_digest_in_order() -> None:
    rig, consumer = logged_rig(), Consumer()
    with running(rig, consumer) as thread:
        for number in range(3):
            thread.submit(make_request(number, prompt(40, number)))
        consumer.wait_for_end(0, 1, 2)
    told = [news for news in consumer.cache if isinstance(news, CacheNews)]
    events = [event for news in told for event in news.events]
    log = rig.cache.events
    assert log is not None
    assert [event.seq for event in events] == list(range(1, log.seq + 1))
    assert (told[0].events, told[0].digest) == ((), CacheDigest())
    assert all(news.digest.seq == news.events[-1].seq for news in told[1:])
    assert told[-1].digest == log.digest() == rig.cache.snapshot().digest()


def test_what_changes_while_there_is_nothing_to_compute_is_told_too() -> None:
    rig, consumer = logged_rig(), Consumer()
    with running(rig, consumer) as thread:
        thread.submit(make_request(0, prompt(40)))
        consumer.wait_for_end(0)
        assert thread.drop_cache([TENANT_A], lambda _: None)
        consumer.wait_for(lambda: last_digest(consumer).device.num_pages == 0)
        consumer.wait_for(lambda: consumer.loads[-1].free_slots == rig.cache.num_slots)


def test_a_snapshot_comes_behind_the_events_that_it_knows_of_and_before_later_ones() -> None:
    rig, consumer = logged_rig(), Consumer()

    def came(snapshot: Snapshot | None) -> None:
        assert snapshot is not None
        with consumer.changed:
            consumer.cache.append(snapshot)
            consumer.changed.notify_all()

    with running(rig, consumer) as thread:
        for number in range(8):
            thread.submit(make_request(number, prompt(40, number), max_new_tokens=9))
            assert thread.snapshot_cache(came)
        consumer.wait_for_end(*range(8))
        consumer.wait_for(lambda: sum(isinstance(each, Snapshot) for each in consumer.cache) == 8)
    digest = CacheDigest()
    for each in consumer.cache:
        if isinstance(each, CacheNews):
            digest = each.digest
        else:
            assert each.digest() == digest


def test_a_cache_that_keeps_no_log_has_no_snapshot_to_tell() -> None:
    answers: SimpleQueue[Snapshot | None] = SimpleQueue()
    with running(timed_rig(), Consumer()) as thread:
        assert thread.snapshot_cache(answers.put)
        assert answers.get(timeout=DEADLINE_S) is None
    assert not thread.snapshot_cache(answers.put)


def last_digest(consumer: Consumer) -> CacheDigest:
    told = [each.digest for each in consumer.cache if isinstance(each, CacheNews)]
    return told[-1] if told else CacheDigest()
