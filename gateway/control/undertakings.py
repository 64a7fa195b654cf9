"""Work that an operator has begun and that is done to its end, even if the operator goes away meanwhile."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class Undertakings:
    """Owns the tasks. What a halted change would leave behind, on workers or in Redis, is nobody's otherwise."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """How many run."""
        return len(self._tasks)

    async def to_its_end(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Return or raise what `work` does; cancelled, leave it running."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """The gateway stops: cancel what still runs."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # where nobody waits any more, nobody asks for it
