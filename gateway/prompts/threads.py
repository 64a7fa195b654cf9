"""The threads that tokenise, and who may use how many of them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class PromptThreads:
    """Threads for work on prompts, shared fairly. Belongs to the event loop.

    One tenant has at most half of them at a time (one at least); what more it wants waits for its turn, first come
    first served. Work that has begun cannot be stopped: its turn ends when the work does, even if whoever waited for
    it has gone long before.
    """

    def __init__(self, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="prompts")
        self._turns_of_one = max(1, num_threads // 2)
        # Held by those who wait and by work that runs: without either a tenant has no entry.
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(
        self, tenant_id: str, work: Callable[P, ResultT], /, *arguments: P.args, **named: P.kwargs
    ) -> ResultT:
        """Do `work` in a thread, in this tenant's turn. The gateway's own work has the empty name."""
        turns = self._turns.setdefault(tenant_id, asyncio.Semaphore(self._turns_of_one))
        await turns.acquire()
        try:
            running = self._threads.submit(work, *arguments, **named)
        except RuntimeError:  # closed
            turns.release()
            raise
        loop = asyncio.get_running_loop()

        def end_turn(_: Future[Any]) -> None:
            loop.call_soon_threadsafe(turns.release)

        running.add_done_callback(end_turn)
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """Wait for what runs; what has not begun is cancelled."""
        self._threads.shutdown(cancel_futures=True)
