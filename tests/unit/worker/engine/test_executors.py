"""Passes beside their caller, and batches that outlive the building of the next one."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tests.unit.worker.engine.harness import Rig, answer, make_request, prompt
from worker.batch import AsyncExecutor, Batch, Executor, SampledToken
from worker.config import EngineConfig
from worker.engine.executors import InlineExecutor, ThreadExecutor

DEADLINE_S = 10.0


class Passes:
    """An executor that says where it ran, and does what it is told first."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.before: Callable[[], object] = lambda: None

    def run(self, batch: Batch) -> list[SampledToken]:
        self.threads.append(threading.current_thread().name)
        self.before()
        return [SampledToken(int(token)) for token in batch.token_ids]


def batch(*token_ids: int) -> Batch:
    tokens = np.array(token_ids, np.int32)
    ends = np.arange(len(tokens) + 1, dtype=np.int32)
    return Batch(tokens, tokens, tokens, ends, ends, tokens, ())


@contextmanager
def on_a_thread(executor: Executor) -> Iterator[ThreadExecutor]:
    thread = ThreadExecutor(executor, "passes")
    try:
        yield thread
    finally:
        assert thread.close(DEADLINE_S)


def test_passes_run_on_one_thread_always_the_same() -> None:
    passes = Passes()
    with on_a_thread(passes) as executor:
        for token in range(5):
            assert executor.start(batch(token)).result() == [SampledToken(token)]
    assert passes.threads == ["passes"] * 5


def test_the_caller_goes_on_while_a_pass_runs() -> None:
    passes, go = Passes(), threading.Event()
    passes.before = lambda: go.wait(DEADLINE_S)
    with on_a_thread(passes) as executor:
        pending = executor.start(batch(3))
        go.set()
        assert pending.result() == [SampledToken(3)]


def test_what_a_pass_raises_is_raised_where_its_result_is_asked_for_and_the_next_one_runs() -> None:
    passes = Passes()

    def broken() -> None:
        passes.before = lambda: None
        raise RuntimeError("broken on purpose")

    passes.before = broken
    with on_a_thread(passes) as executor:
        pending = executor.start(batch(1))
        with pytest.raises(RuntimeError, match="broken on purpose"):
            pending.result()
        assert executor.start(batch(2)).result() == [SampledToken(2)]


def test_a_pass_that_hangs_is_told_when_closing() -> None:
    passes, go = Passes(), threading.Event()
    passes.before = lambda: go.wait(DEADLINE_S)
    executor = ThreadExecutor(passes)
    executor.start(batch(1))
    assert not executor.close(0.05)
    go.set()
    assert executor.close(DEADLINE_S)


def test_without_passes_nothing_uses_the_processor() -> None:
    with on_a_thread(Passes()) as executor:
        executor.start(batch(1)).result()
        before = time.process_time()
        threading.Event().wait(0.3)
        assert time.process_time() - before < 0.05


@pytest.mark.parametrize("running", [InlineExecutor, ThreadExecutor])
def test_an_engine_says_the_same_on_either(running: Callable[[Executor], AsyncExecutor]) -> None:
    rig = Rig(config=EngineConfig(max_chunk_tokens=7, max_running=3), running=running)
    rig.beside = lambda: None
    rig.submit(*(make_request(number, prompt(20, number)) for number in range(5)))
    rig.run()
    for number in range(5):
        assert rig.tokens(number) == answer(prompt(20, number), 4)


def test_a_batch_stays_as_it_was_while_the_next_one_is_built() -> None:
    rig = Rig()
    rig.submit(*(make_request(number, prompt(10, number), max_new_tokens=20) for number in range(3)))
    seen: list[tuple[Batch, list[int]]] = []

    def compare() -> None:
        newest = rig.executor.batches[-1]
        if seen:
            earlier, slots = seen[-1]
            assert earlier.kv_indices.tolist() == slots
        seen.append((newest, newest.kv_indices.tolist()))

    rig.executor.before_run = compare
    rig.run()
    assert len(seen) > 10
