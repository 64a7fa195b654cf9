"""For how long nothing has moved while there is work, seen from outside of the engine's thread."""

import threading
import time
from collections.abc import Callable

import pytest

from tests.unit.worker.engine.adapter_rig import AdapterRig, adapted
from tests.unit.worker.engine.harness import Rig, make_request, prompt
from tests.unit.worker.engine.test_engine_thread import DEADLINE_S, Consumer, Gate, running, timed_rig
from worker.batch import Executor
from worker.engine import EngineThread
from worker.engine.executors import InlineExecutor, ThreadExecutor
from worker.engine.stall import StallWatch


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen in time"
        time.sleep(0.005)


def test_without_work_nothing_stalls() -> None:
    clock = Clock()
    watch = StallWatch(clock)
    clock.now += 1000
    assert watch.stalled_s(commands_wait=False) == 0.0
    watch.looked(True)
    watch.looked(False)
    clock.now += 1000
    assert watch.stalled_s(commands_wait=False) == 0.0


def test_a_stall_is_counted_from_the_last_step_that_moved_something() -> None:
    clock = Clock()
    watch = StallWatch(clock)
    clock.now += 50  # idle until then
    watch.looked(True)
    clock.now += 3
    watch.moved()
    watch.looked(True)
    clock.now += 7
    assert watch.stalled_s(commands_wait=False) == 7.0
    watch.moved()
    assert watch.stalled_s(commands_wait=False) == 0.0


def test_new_work_does_not_stall_from_before_it_came() -> None:
    clock = Clock()
    watch = StallWatch(clock)
    watch.looked(False)
    clock.now += 500
    watch.looked(True)
    clock.now += 2
    assert watch.stalled_s(commands_wait=False) == 2.0


def test_commands_that_wait_stall_from_when_the_first_of_them_entered() -> None:
    clock = Clock()
    watch = StallWatch(clock)
    clock.now += 500
    watch.entered_first()
    clock.now += 4
    assert watch.stalled_s(commands_wait=True) == 4.0
    assert watch.stalled_s(commands_wait=False) == 0.0


def test_commands_that_wait_do_not_stall_from_before_something_last_moved() -> None:
    clock = Clock()
    watch = StallWatch(clock)
    watch.entered_first()
    clock.now += 500
    watch.moved()
    clock.now += 4
    assert watch.stalled_s(commands_wait=True) == 4.0


@pytest.mark.parametrize("executor", [InlineExecutor, ThreadExecutor])
def test_a_thread_that_is_stuck_in_a_forward_pass_shows_it_and_goes_on(
    executor: Callable[[Executor], InlineExecutor | ThreadExecutor],
) -> None:
    rig, consumer = timed_rig(executor=executor), Consumer()
    gate = Gate(rig)
    with running(rig, consumer) as thread:
        assert thread.stalled_s() == 0.0
        thread.submit(make_request(0, prompt(10)))
        assert gate.entered.wait(DEADLINE_S)
        wait_until(lambda: thread.stalled_s() > 0.2)
        assert not thread.has_died
        gate.open.set()
        consumer.wait_for_end(0)
        wait_until(lambda: thread.stalled_s() == 0.0)


def test_steps_in_which_everybody_only_waits_are_a_stall() -> None:
    rig = AdapterRig(1, "a", clock=time.monotonic)
    rig.adapters.slow = True  # its weights never come
    with running(rig, Consumer()) as thread:
        thread.submit(adapted(0, "a"))
        wait_until(lambda: rig.engine.load().waiting == 1)
        wait_until(lambda: thread.stalled_s() > 0.3)  # several looks, in vain


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_died_shows_what_waits_for_it() -> None:
    rig, consumer = timed_rig(), Consumer()
    thread = _dead(rig, consumer)
    assert thread.has_died
    assert thread.stalled_s() == 0.0  # nobody wants anything
    thread.submit(make_request(1, prompt(10)))
    wait_until(lambda: thread.stalled_s() > 0.05)
    assert thread.stalled_s() < DEADLINE_S
    thread.stop(DEADLINE_S)


def test_a_thread_that_was_told_to_stop_has_not_died() -> None:
    consumer = Consumer()
    with running(timed_rig(), consumer) as thread:
        pass
    assert not thread.has_died


def test_an_idle_thread_that_has_served_does_not_stall() -> None:
    consumer = Consumer()
    with running(timed_rig(), consumer) as thread:
        thread.submit(make_request(0, prompt(10)))
        consumer.wait_for_end(0)
        wait_until(lambda: thread.stalled_s() == 0.0)
        for _ in range(20):
            assert thread.stalled_s() == 0.0
            time.sleep(0.005)


def _dead(rig: Rig, consumer: Consumer) -> EngineThread:
    """Return a thread whose engine has thrown it out of its loop."""

    def fail(now: float) -> None:
        raise SystemExit

    rig.engine.idle = fail  # type: ignore[method-assign]
    thread = EngineThread(rig.engine, consumer)
    thread.start()
    thread.wake()
    wait_until(lambda: not any(each is thread._thread for each in threading.enumerate()))
    return thread
