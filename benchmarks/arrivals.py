"""Requests that come at moments of their own, however long answers take: an open loop. Knows no server."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.load import Client, Timing
from benchmarks.workloads import Turn


@dataclass(frozen=True, slots=True)
class Arriving:
    """A request, and when it comes, in seconds from the beginning."""

    at_s: float
    turn: Turn


def moments(rate: float, chance: random.Random) -> Iterator[float]:
    """Yield moments without end, `rate` a second on average and independent of each other (Poisson)."""
    at_s = 0.0
    while True:
        at_s += chance.expovariate(rate)
        yield at_s


async def send_on_time(client: Client, arriving: Sequence[Arriving]) -> list[Timing]:
    """Send each request at its moment; return what came back, in their order."""
    began = asyncio.get_running_loop().time()
    return list(await asyncio.gather(*(_answer(client, each, began) for each in arriving)))


async def _answer(client: Client, one: Arriving, began: float) -> Timing:
    await asyncio.sleep(max(0.0, began + one.at_s - asyncio.get_running_loop().time()))
    return await client.answer(one.turn)
