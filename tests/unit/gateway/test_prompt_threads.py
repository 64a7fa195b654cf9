"""One tenant never has all the threads, and nobody waits for a turn that nobody uses."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from gateway.prompts.threads import PromptThreads
from tests.fakes.gateway_stack import until


class Work:
    """Runs until it is let go; knows how often it was begun."""

    def __init__(self) -> None:
        self.begun = 0
        self._go = threading.Event()

    def __call__(self) -> str:
        self.begun += 1
        assert self._go.wait(30)
        return "done"

    def go(self) -> None:
        self._go.set()


@pytest.fixture
def work() -> Iterator[Work]:
    held = Work()
    yield held
    held.go()


async def test_a_tenant_that_wants_all_threads_leaves_half_to_others(work: Work) -> None:
    threads = PromptThreads(4)
    greedy = [asyncio.create_task(threads.run("greedy", work)) for _ in range(10)]
    await until(lambda: work.begun == 2)
    assert await asyncio.wait_for(threads.run("modest", lambda: "served"), 10) == "served"
    assert work.begun == 2
    work.go()
    assert await asyncio.gather(*greedy) == ["done"] * 10
    assert work.begun == 10
    threads.close()


async def test_with_a_single_thread_everybody_may_use_it() -> None:
    threads = PromptThreads(1)
    assert await threads.run("a", lambda: 1) + await threads.run("b", lambda: 2) == 3
    threads.close()


async def test_work_keeps_its_turn_when_whoever_waited_has_gone(work: Work) -> None:
    threads = PromptThreads(2)
    first = asyncio.create_task(threads.run("a", work))
    await until(lambda: work.begun == 1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(threads.run("a", lambda: "second"))
    done, _ = await asyncio.wait({second}, timeout=0.05)
    assert not done
    work.go()
    assert await asyncio.wait_for(second, 10) == "second"
    threads.close()


async def test_who_gives_up_waiting_takes_no_turn(work: Work) -> None:
    threads = PromptThreads(2)
    first = asyncio.create_task(threads.run("a", work))
    await until(lambda: work.begun == 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(threads.run("a", lambda: "never"), 0.02)
    work.go()
    assert await first == "done"
    assert await asyncio.wait_for(threads.run("a", lambda: "next"), 10) == "next"
    threads.close()


async def test_work_that_fails_ends_its_turn() -> None:
    threads = PromptThreads(2)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(threads.run("a", lambda: 1 // 0), 10)
    threads.close()
