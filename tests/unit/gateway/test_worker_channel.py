"""The first message of a call, from calls that swallow cancellations, as those of gRPC may while they begin."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.dispatch.worker_channel import first_of


class Call:
    """Says `messages`, once it has begun; whoever waits for that cannot be cancelled."""

    def __init__(self, *messages: int) -> None:
        self._messages = messages
        self.begun = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[int]:
        while not self.begun.is_set():
            try:
                await self.begun.wait()
            except asyncio.CancelledError:
                continue
        for message in self._messages:
            yield message


@pytest.mark.parametrize(("messages", "first"), [((1, 2), 1), ((), None)])
async def test_the_first_message_is_what_comes_first(messages: tuple[int, ...], first: int | None) -> None:
    call = Call(*messages)
    call.begun.set()
    assert await first_of(call, 10.0) == first


async def test_who_waits_for_a_call_that_does_not_begin_can_be_cancelled() -> None:
    call = Call(1)
    waits = asyncio.create_task(first_of(call, 3600.0))
    await asyncio.sleep(0)
    waits.cancel()
    done, _ = await asyncio.wait([waits], timeout=10.0)
    assert waits in done
    assert waits.cancelled()
    call.begun.set()


async def test_who_waits_for_a_call_that_does_not_begin_is_told_when_the_time_is_over() -> None:
    call = Call(1)
    waits = asyncio.create_task(first_of(call, 0.01))
    done, _ = await asyncio.wait([waits], timeout=10.0)
    assert waits in done
    assert isinstance(waits.exception(), TimeoutError)
    call.begun.set()
