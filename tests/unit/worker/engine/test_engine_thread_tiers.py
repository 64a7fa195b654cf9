"""The engine's thread over a cache with tiers: what goes on when nobody asks for anything, and when it drains."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import pytest

from hicache.cache import PrefixCache
from hicache.host import WriteThrough
from hicache.storage.memory import MemoryStore
from tests.unit.worker.engine.harness import Rig, answer, make_request, prompt
from tests.unit.worker.engine.test_engine_thread import DEADLINE_S, Consumer, running
from tests.unit.worker.engine.tiered_rig import RULES, TieredRig
from worker.errors import FailureCode

HELD: Final = prompt(40)
IMPATIENT: Final = replace(RULES, copy_timeout_s=0.2)
PATIENT: Final = replace(RULES, copy_timeout_s=1_000.0, retry_s=0.01)


def wait_until(condition: Callable[[], bool], within_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        threading.Event().wait(0.005)


def timed_rig(**parts: object) -> TieredRig:
    rig = TieredRig(clock=time.monotonic, **parts)  # type: ignore[arg-type]
    rig.now = time.monotonic()
    return rig


def rig_with_held_on_the_host(**parts: object) -> TieredRig:
    rig = timed_rig(**parts)
    rig.submit(make_request(900, HELD, max_new_tokens=1))
    rig.serve_all()
    rig.to_host()
    return rig


def load_of(rig: TieredRig) -> bool:
    """Let the store answer; return whether a load is under way."""
    rig.io.finish_all()
    return bool(rig.loads)


def test_copies_are_begun_and_their_ends_seen_although_nobody_asks_for_anything() -> None:
    rig, consumer = timed_rig(write_policy=WriteThrough(), rules=PATIENT), Consumer()
    with running(rig, consumer) as thread:
        rig.on_done = thread.wake
        thread.submit(make_request(0, [1, 2, 3], max_new_tokens=1))
        consumer.wait_for_end(0)
        wait_until(lambda: bool(rig.transfer.pending))
        rig.end_copies()
        wait_until(lambda: rig.engine.pending == 0)
    assert rig.tiers.tier_stats().mirrored_tokens == 3


def test_a_copy_that_stalls_is_given_up_although_it_tells_nobody() -> None:
    rig, consumer = timed_rig(write_policy=WriteThrough(), rules=IMPATIENT), Consumer()
    with running(rig, consumer) as thread:
        thread.submit(make_request(0, [1, 2, 3], max_new_tokens=1))
        consumer.wait_for_end(0)
        wait_until(lambda: rig.tiers.tier_stats().stalls == 1)


def test_a_sequence_whose_load_stalls_is_served_although_nobody_wakes_the_thread() -> None:
    rig, consumer = rig_with_held_on_the_host(rules=IMPATIENT), Consumer()
    tokens = [*HELD, 5]
    with running(rig, consumer) as thread:
        thread.submit(make_request(0, tokens))
        consumer.wait_for_end(0)
    assert rig.tiers.tier_stats().stalls == 1
    assert consumer.tokens(0) == answer(tokens, 4)


def test_a_prefetch_that_nobody_answers_holds_a_sequence_up_for_its_time_out() -> None:
    rig, consumer = timed_rig(fetch_timeout_s=0.2), Consumer()
    with running(rig, consumer) as thread:
        thread.submit(make_request(0, HELD))
        consumer.wait_for_end(0)
    assert consumer.tokens(0) == answer(HELD, 4)
    assert rig.observer.queue_waits[0] >= 0.2


def test_few_steps_are_made_while_all_that_run_load() -> None:
    rig, consumer = rig_with_held_on_the_host(rules=PATIENT), Consumer()
    with running(rig, consumer) as thread:
        rig.on_done = thread.wake
        thread.submit(make_request(0, [*HELD, 5]))
        wait_until(lambda: load_of(rig))
        before, num_before = time.monotonic(), len(consumer.loads)
        threading.Event().wait(0.3)
        num_steps, waited_s = len(consumer.loads) - num_before, time.monotonic() - before
        rig.end_load()
        consumer.wait_for_end(0)
    # One every 20 ms, not one after another.
    assert num_steps <= waited_s / 0.02 + 2
    assert consumer.tokens(0) == answer([*HELD, 5], 4)


def test_the_end_of_a_load_is_not_waited_for_longer_than_it_takes() -> None:
    rig, consumer = rig_with_held_on_the_host(rules=PATIENT), Consumer()
    with running(rig, consumer) as thread:
        rig.on_done = thread.wake
        thread.submit(make_request(0, [*HELD, 5]))
        wait_until(lambda: load_of(rig))
        thread.cancel((0, 0))
        consumer.wait_for_end(0)
        assert rig.engine.pending > 0
        rig.end_load()
        wait_until(lambda: rig.engine.load().free_slots == 200)


def test_what_the_cache_has_goes_to_storage() -> None:
    store = MemoryStore(1 << 20)
    rig, consumer = timed_rig(store=store, rules=PATIENT), Consumer()
    with running(rig, consumer) as thread, working(rig):
        rig.on_done = thread.wake
        thread.submit(make_request(0, HELD, max_new_tokens=1))
        consumer.wait_for_end(0)
        assert thread.drain(DEADLINE_S)
        assert rig.engine.pending == 0
    assert store.stats().num_pages == 10


def test_a_copy_that_fails_does_not_end_the_flush() -> None:
    store = MemoryStore(1 << 20)
    rig, consumer = timed_rig(store=store, rules=replace(PATIENT, max_copy_tokens=8)), Consumer()
    with running(rig, consumer) as thread:
        rig.on_done = thread.wake
        thread.submit(make_request(0, HELD, max_new_tokens=1))
        rig.io.finish_all()
        wait_until(lambda: served(rig, consumer, 0))
        drained: list[bool] = []
        drain = threading.Thread(target=lambda: drained.append(thread.drain(DEADLINE_S)))
        drain.start()
        wait_until(lambda: bool(rig.transfer.pending))
        rig.transfer.fail(rig.transfer.pending[0])  # type: ignore[union-attr]
        with working(rig):
            drain.join()
    assert drained == [True]
    assert rig.tiers.tier_stats().mirror_failures == 1
    assert store.stats().num_pages > 5


@pytest.mark.parametrize("copies_end", [False, True])
def test_a_flush_that_takes_too_long_ends_with_the_time_out(copies_end: bool) -> None:
    rig, consumer = timed_rig(rules=PATIENT), Consumer()
    with running(rig, consumer) as thread:
        thread.submit(make_request(0, [1, 2, 3, 4, 5], max_new_tokens=1))
        rig.io.finish_all()
        wait_until(lambda: served(rig, consumer, 0))
        before = time.monotonic()
        if copies_end:
            threading.Timer(0.05, rig.end_copies).start()
        assert thread.drain(0.3)
        assert 0.29 < time.monotonic() - before < DEADLINE_S / 2
        assert rig.engine.pending > 0


def test_a_flush_that_raises_does_not_keep_the_drain() -> None:
    rig, consumer = Rig(clock=time.monotonic, cache=lambda _: FaultyCache(1_000, flushes_badly=True)), Consumer()
    with running(rig, consumer) as thread:
        thread.submit(make_request(0))
        assert thread.drain(DEADLINE_S)
        consumer.wait_for_end(0)
    assert consumer.tokens(0) == answer([1, 2, 3], 4)


def test_a_tick_that_raises_ends_those_who_are_here_and_the_thread_goes_on() -> None:
    cache = FaultyCache(1_000)
    rig, consumer = Rig(clock=time.monotonic, cache=lambda _: cache), Consumer()
    with running(rig, consumer) as thread:
        thread.submit(make_request(0, max_new_tokens=990))
        consumer.wait_for(lambda: len(consumer.tokens(0)) > 5)
        cache.num_bad_ticks = 1
        consumer.wait_for_end(0)
        assert consumer.code(0) is FailureCode.INTERNAL
        thread.submit(make_request(1, [7, 8]))
        consumer.wait_for_end(1)
    assert consumer.tokens(1) == answer([7, 8], 4)
    rig.assert_nothing_is_held()


def test_a_tick_that_always_raises_lets_nobody_wait_for_ever() -> None:
    cache = FaultyCache(1_000)
    cache.num_bad_ticks = 1_000_000
    rig, consumer = Rig(clock=time.monotonic, cache=lambda _: cache), Consumer()
    with running(rig, consumer) as thread:
        for number in range(3):
            thread.submit(make_request(number))
        consumer.wait_for_end(0, 1, 2)
    assert all(consumer.code(number) is FailureCode.INTERNAL for number in range(3))


def test_a_request_that_storage_cannot_be_asked_for_is_answered_once_and_forgotten() -> None:
    cache = FaultyCache(1_000)
    rig, consumer = Rig(clock=time.monotonic, cache=lambda _: cache), Consumer()
    with running(rig, consumer) as thread:
        cache.num_bad_prefetches = 1
        thread.submit(make_request(0))
        consumer.wait_for_end(0)
        thread.submit(make_request(1, [7, 8]))
        consumer.wait_for_end(1)
        assert not rig.engine.has_work
    assert consumer.code(0) is FailureCode.INTERNAL
    assert [output.finish is None for output in consumer.outputs if output.sequence_id == (0, 0)] == [False]
    assert consumer.tokens(1) == answer([7, 8], 4)


class FaultyCache(PrefixCache):
    """A cache without tiers that fails where they would."""

    def __init__(self, num_slots: int, *, flushes_badly: bool = False) -> None:
        super().__init__(num_slots)
        self.num_bad_ticks = self.num_bad_prefetches = 0
        self._flushes_badly = flushes_badly

    def tick(self, now: float) -> None:
        super().tick(now)
        if self.num_bad_ticks:
            self.num_bad_ticks -= 1
            raise RuntimeError("a tick at fault")

    def prefetch(self, *args: object, **kwargs: object) -> None:
        if self.num_bad_prefetches:
            self.num_bad_prefetches -= 1
            raise RuntimeError("a prefetch at fault")

    def flush(self, *, now: float) -> None:
        if self._flushes_badly:
            raise RuntimeError("a flush at fault")


def served(rig: TieredRig, consumer: Consumer, *numbers: int) -> bool:
    """Let the store answer; return whether these sequences have ended."""
    rig.io.finish_all()
    return all(consumer.finish(number) is not None for number in numbers)


@contextmanager
def working(rig: TieredRig) -> Iterator[None]:
    """Copies and pages end, on a thread of their own, as soon as they are asked for."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.002):
            rig.end_copies()
            rig.io.finish_all()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join()
