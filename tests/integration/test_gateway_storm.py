"""Workers die, stall, fail, shut down and fill up at random under load: each client has what is its own, and nothing is
left anywhere when all is over.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

import grpc
import pytest

from gateway.config import FailoverConfig, WorkerLinkConfig
from radixgate.v1 import worker_pb2
from tests.fakes.fake_worker import FakeWorker, completion
from tests.fakes.gateway_stack import Stack, gateway, until

FAILOVER = FailoverConfig(max_moves=100, wait_for_worker_s=60.0, backoff_initial_s=0.002, backoff_max_s=0.01)
LINK = WorkerLinkConfig(backoff_initial_s=0.005, backoff_max_s=0.02, breaker_failures=3, breaker_open_s=0.05)
FULL = worker_pb2.SequenceError(code=worker_pb2.SEQUENCE_ERROR_CODE_OVERLOADED, message="full")
NUM_REQUESTS, AT_A_TIME = 300, 40


@dataclass
class Weather:
    """What happens to workers."""

    workers: list[FakeWorker]
    rng: random.Random
    happened: Counter[str] = field(default_factory=Counter)

    async def rage(self) -> None:
        """One thing after the other, and each is over before the next: until cancelled."""
        while True:
            worker = self.rng.choice(self.workers)
            what = self.rng.choice(["kill", "kill", "stall", "fail", "shut_down", "fill"])
            self.happened[what] += 1
            await asyncio.shield(asyncio.create_task(getattr(self, what)(worker)))
            await self.pause()

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.random() * 0.03)

    async def kill(self, worker: FakeWorker) -> None:
        address = worker.address
        await worker.kill()
        await self.pause()
        await worker.start(address)

    async def stall(self, worker: FakeWorker) -> None:
        worker.report(stalled_s=100.0)
        await self.pause()
        worker.report(stalled_s=0.0)

    async def fail(self, worker: FakeWorker) -> None:
        worker.end_all(worker_pb2.SEQUENCE_ERROR_CODE_INTERNAL)

    async def shut_down(self, worker: FakeWorker) -> None:
        worker.end_all(worker_pb2.SEQUENCE_ERROR_CODE_SHUTTING_DOWN)

    async def fill(self, worker: FakeWorker) -> None:
        worker.failure = FULL
        await self.pause()
        worker.failure = None


async def ask(stack: Stack, rng: random.Random) -> str:
    """Make one request, and look at all that comes; some leave in between."""
    num_completions, num_tokens = rng.choice([1, 1, 2]), rng.randint(1, 40)
    prompt = [rng.randrange(10, 200) for _ in range(rng.randint(1, 60))]
    leaves_after = rng.randrange(num_tokens) if rng.random() < 0.15 else None
    sampling = {"max_new_tokens": num_tokens, "n": num_completions}
    call = stack.call(tokens={"token_ids": prompt}, sampling=sampling, timeout=60)
    got: dict[int, list[int]] = {index: [] for index in range(num_completions)}
    try:
        async for message in call:
            got[message.index].extend(message.token_ids)
            if leaves_after is not None and sum(map(len, got.values())) > leaves_after:
                call.cancel()
    except asyncio.CancelledError:
        end = "left"
    except grpc.aio.AioRpcError as error:
        end = error.code().name
    else:
        assert got == {index: completion(prompt, num_tokens, index) for index in got}
        assert message.usage.completion_tokens == num_completions * num_tokens
        assert message.usage.prompt_tokens == len(prompt)
        end = "answered"
    # Before anything was sent a request may find every worker full, or fail at the only one that is there.
    assert end in {"answered", "left"} or not any(got.values())
    for index, token_ids in got.items():
        assert token_ids == completion(prompt, len(token_ids), index)
    return end


def left_over(stack: Stack, workers: list[FakeWorker]) -> dict[str, int]:
    serving = stack.app.serving
    links = serving.fleet.links()
    serving.pages.index.check()
    counts = {
        "streams": stack.observer.open_streams.total(),
        "journeys": len(serving.dispatcher._journeys),
        "paced": serving.dispatcher._limits.pace.num_streams,
        "calls": len(stack.app.fronts.calls.in_flight),
        "room": stack.app.fronts.calls.room.taken,
        "under way": sum(link.in_flight for link in links),
        "sent": sum(len(link._view._sent) + len(link._view._backlog) for link in links),
        "expected": sum(link._view._pages.holder.num_pages(2) for link in links if link._view._pages is not None),
        "moves": sum(task.get_name() == "move of a request" for task in asyncio.all_tasks()),
        "at workers": sum(worker.num_running for worker in workers),
        "away": len(workers) - stack.observer.workers.total(),
    }
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_storm_over_the_workers_leaves_answers_whole_and_nothing_behind(redis_url: str, seed: int) -> None:
    rng = random.Random(seed)
    workers = [await FakeWorker(f"w{number}").start() for number in range(4)]
    async with gateway(redis_url, workers, failover=FAILOVER, worker_link=LINK) as stack:
        weather = Weather(workers, rng)
        raging = asyncio.create_task(weather.rage())
        gate = asyncio.Semaphore(AT_A_TIME)

        async def in_turn() -> str:
            async with gate:
                return await ask(stack, rng)

        ends = Counter(await asyncio.gather(*(in_turn() for _ in range(NUM_REQUESTS))))
        raging.cancel()
        await until(lambda: left_over(stack, workers) == {}, 30)
        assert ends.keys() <= {"answered", "left", "RESOURCE_EXHAUSTED", "INTERNAL"}
        assert ends["answered"] >= NUM_REQUESTS * 0.7
        assert weather.happened["kill"] > 0
        assert len(stack.observer.moves) > 0
    for worker in workers:
        await worker.kill()
