"""Fleets of real processes for tests: prompts, loads beside what is done to members, and what must hold then."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import psutil

from benchmarks.fleet_client import FleetClient, Outcome, fleet_client, tokens_request
from benchmarks.fleet_processes import Fleet, FleetPlan, Member, running_fleet
from radixgate.v1 import inference_pb2
from tests.processes import wait_until

__all__ = ["Fleet", "FleetPlan", "Load", "Member", "Outcome", "client_of", "prompt", "request", "running_fleet"]

STREAM_TIMEOUT_S = 90.0
AT_TOKEN = 10  # something is done to a fleet


def prompt(number: int, num_tokens: int = 120) -> list[int]:
    """Return a prompt of its own for each number, whose first token is nobody else's."""
    chance = random.Random(number)
    return [1000 + number, *(chance.randrange(1000, 1_000_000) for _ in range(num_tokens - 1))]


def request(number: int, num_new: int, num_tokens: int = 120) -> inference_pb2.GenerateRequest:
    """Return a request for exactly `num_new` tokens: greedy where the number is even, seeded where it is odd."""
    return tokens_request(prompt(number, num_tokens), num_new, seed=number if number % 2 else None)


@asynccontextmanager
async def client_of(fleet: Fleet, tenant: str = "acme") -> AsyncIterator[FleetClient]:
    """Provide a tenant's client over all gateways, which does what gRPC has clients do where servers come and go."""
    key = fleet.make_tenant(tenant)
    async with fleet_client([gateway.address for gateway in fleet.gateways], key) as client:
        yield client


def complete(outcome: Outcome, num_new: int) -> bool:
    """Whether a stream of one completion came to its end, with the account of exactly what it brought."""
    return (
        outcome.error == ""
        and outcome.usage is not None
        and list(map(len, outcome.token_ids.values())) == [num_new]
        and outcome.usage.completion_tokens == num_new
        and outcome.cached + outcome.usage.computed_prompt_tokens == outcome.usage.prompt_tokens
    )


async def streams_with(
    client: FleetClient,
    requests: Sequence[inference_pb2.GenerateRequest],
    at_token: int,
    then: Callable[[], Awaitable[None] | None],
) -> list[Outcome]:
    """Run all requests at once; do something when every one of them has brought `at_token` tokens, and none has ended.

    Raises AssertionError where one ends before.
    """
    news: asyncio.Queue[Outcome] = asyncio.Queue()
    tasks = [asyncio.create_task(client.ask(each, news, STREAM_TIMEOUT_S)) for each in requests]
    seen: dict[int, Outcome] = {}
    async with asyncio.timeout(STREAM_TIMEOUT_S):
        while len([each for each in seen.values() if each.num_tokens >= at_token]) < len(requests):
            outcome = await news.get()
            seen[id(outcome)] = outcome
            ended = [task.result() for task in tasks if task.done()]
            assert not ended, f"a stream ended before all had {at_token} tokens: {ended[0]}"
        done = then()
        if done is not None:
            await done
        return list(await asyncio.gather(*tasks))


async def undisturbed(fleet: Fleet, requests: Sequence[inference_pb2.GenerateRequest]) -> list[Outcome]:
    """Return what comes of requests when nothing happens; another tenant's, so that nobody hits what these leave."""
    async with client_of(fleet, "undisturbed") as client:
        return await client.ask_all(requests)


def assert_as_undisturbed(outcomes: Sequence[Outcome], reference: Sequence[Outcome]) -> None:
    assert [outcome.error for outcome in outcomes] == [""] * len(outcomes)
    for outcome, same in zip(outcomes, reference, strict=True):
        assert (outcome.token_ids, outcome.texts) == (same.token_ids, same.texts)
        assert outcome.logprobs == same.logprobs
        assert outcome.usage is not None
        assert same.usage is not None
        assert outcome.usage.prompt_tokens == same.usage.prompt_tokens
        assert outcome.usage.completion_tokens == same.usage.completion_tokens == outcome.num_tokens
        assert outcome.cached + outcome.usage.computed_prompt_tokens == outcome.usage.prompt_tokens


async def streams_while(
    fleet: Fleet, requests: Sequence[inference_pb2.GenerateRequest], then: Callable[[], Awaitable[None] | None]
) -> None:
    """Do something to the fleet at token 10 of all requests: some have to move, and they must not notice."""
    reference = await undisturbed(fleet, requests)
    moved = moves(fleet)
    async with client_of(fleet) as client:
        assert_as_undisturbed(await streams_with(client, requests, AT_TOKEN, then), reference)
    assert moves(fleet) > moved


def moves(fleet: Fleet) -> float:
    """Return how often a request has gone on at another worker."""
    return sum(gateway.total("radixgate_gateway_moves_total") for gateway in fleet.gateways if gateway.runs)


def held_by(worker: Member) -> int:
    """Return how many sequences a worker has, running and waiting."""
    return int(worker.total("radixgate_running_sequences") + worker.total("radixgate_waiting_sequences"))


@dataclass
class Load:
    """Asks without a break, so many at a time, until it is told to stop. Use with `async with`."""

    client: FleetClient
    num_streams: int
    num_new: int
    outcomes: list[Outcome] = field(default_factory=list)
    _stopped: bool = False
    _news: asyncio.Event = field(default_factory=asyncio.Event)  # one more has ended
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(self.num_streams)]
        return self

    async def __aexit__(self, *reason: object) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def has_done(self, num_more: int) -> None:
        """Wait for so many further ends."""
        wanted = len(self.outcomes) + num_more
        async with asyncio.timeout(STREAM_TIMEOUT_S):
            while len(self.outcomes) < wanted:
                self._news.clear()
                await self._news.wait()

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if not complete(outcome, self.num_new)]

    async def _run(self, stream: int) -> None:
        turn = 0
        while not self._stopped:
            # Two prompts of each stream come again and again; the others are new.
            number = stream if turn % 3 else 100_000 + stream * 1000 + turn
            self.outcomes.append(await self.client.ask(request(number, self.num_new), timeout_s=STREAM_TIMEOUT_S))
            self._news.set()
            turn += 1


async def restarted(member: Member) -> None:
    """Restart a member as an upgrade does: SIGTERM, its end, and the same address again."""
    member.ask_to_end()
    await asyncio.to_thread(member.wait_until_gone)
    await back(member)


async def back(member: Member) -> None:
    """Start a member that has ended, under the same address."""
    member.start()
    await asyncio.to_thread(member.wait_until_ready)


async def drained_with_streams(gateway: Member) -> None:
    """Have a gateway end while it has streams, and wait until it is gone. Raises AssertionError where it had none."""

    def drains_with_streams() -> bool:
        return not gateway.says("/readyz") and gateway.total("radixgate_gateway_open_streams") > 0

    gateway.ask_to_end()
    await asyncio.to_thread(wait_until, drains_with_streams, timeout_s=10, what="a drain with streams under way")
    await asyncio.to_thread(gateway.wait_until_gone)


def left_behind(pids: Sequence[int]) -> list[int]:
    """Return those processes that still run."""
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
