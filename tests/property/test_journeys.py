"""Whatever workers do to a request, its client sees what an undisturbed run would have shown, and nothing is left over.

The real journey, progress and stream over links that are lists: what a worker computes, loses and refuses is chosen at
random.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import FailoverConfig
from gateway.dispatch.arrivals import Arrivals
from gateway.dispatch.catalogue import ServedModel
from gateway.dispatch.dispatcher import Dispatcher, StreamLimits
from gateway.dispatch.explanation import Explanation
from gateway.dispatch.generation import Generation, Segment
from gateway.dispatch.journey import Order
from gateway.dispatch.link import Recipient
from gateway.dispatch.pace import Pace
from gateway.dispatch.placing import Placing
from gateway.dispatch.stream import TokenStream
from gateway.dispatch.verdicts import Fault
from gateway.errors import NoWorkerError, StreamLostError, UnavailableError
from gateway.observer import NullObserver
from gateway.routing.router import Choice
from radixgate.v1 import inference_pb2, worker_pb2

PROMPT = (5, 6, 7)
LENGTH = 12
MODEL = cast("ServedModel", type("Model", (), {"name": "m", "fingerprint": b"f", "simulated": False})())
ERRORS = {
    "failed": worker_pb2.SEQUENCE_ERROR_CODE_INTERNAL,
    "shutting_down": worker_pb2.SEQUENCE_ERROR_CODE_SHUTTING_DOWN,
    "overloaded": worker_pb2.SEQUENCE_ERROR_CODE_OVERLOADED,
}


def token(index: int, position: int) -> int:
    """Return what any worker computes there."""
    return (index * 31 + position * 17) % 97


def text(index: int, position: int) -> str:
    """Return what becomes certain with a token: of some nothing, of the next one both."""
    return "" if (index + position) % 3 == 0 else f"<{index}.{position}>" * (1 + (index + position) % 3)


@dataclass
class Computing:
    """One sequence at one link."""

    recipient: Recipient
    submit: worker_pb2.Submit
    have: dict[int, int]  # tokens by completion, of those that run
    prompt_told: int
    admitted: bool = False

    def step(self, rng: random.Random) -> worker_pb2.SequenceOutput:
        """Compute something of some completion."""
        index = rng.choice(sorted(self.have))
        output = worker_pb2.SequenceOutput(sequence_id=self.submit.sequence_id, index=index)
        if not self.admitted:
            self.admitted = True
            output.admission.prompt_tokens = len(PROMPT)
            output.admission.cached.device = rng.randrange(3)
        if index == 0 and self.prompt_told < len(PROMPT) - 1 and not self.submit.continued:
            num = rng.randint(1, len(PROMPT) - 1 - self.prompt_told)
            for position in range(self.prompt_told, self.prompt_told + num):
                output.prompt_logprobs.add(logprob=-float(position))
            self.prompt_told += num
            if self.prompt_told < len(PROMPT) - 1:
                return output
        for position in range(self.have[index], min(LENGTH, self.have[index] + rng.randint(1, 4))):
            output.token_ids.append(token(index, position))
            output.text += text(index, position)
            output.logprobs.add(logprob=-1.0 - position)
            self.have[index] += 1
        if self.have[index] == LENGTH:
            del self.have[index]
            output.finish_reason = inference_pb2.FINISH_REASON_LENGTH
        return output


class Health:
    opens_in_s = 0.0


@dataclass(eq=False)
class Link:
    """A worker, and the way to it."""

    address: str
    takes_requests: bool = True
    connection: int = 1
    max_sequence_tokens: int = 100
    expected_wait_s: float | None = None
    health: Health = field(default_factory=Health)
    under_way: dict[int, Computing] = field(default_factory=dict)
    submits: list[worker_pb2.Submit] = field(default_factory=list)

    def candidate(self) -> str:
        return self.address

    def submit(self, submit: worker_pb2.Submit, key: object, recipient: Recipient) -> int:
        assert self.takes_requests
        submit.sequence_id = len(self.submits) + 1
        self.submits.append(submit)
        begun = {each.index: list(each.token_ids) for each in submit.continued}
        for index, token_ids in begun.items():
            assert token_ids == [token(index, position) for position in range(len(token_ids))]
            assert 0 < len(token_ids) < LENGTH
        have = {index: len(begun.get(index, [])) for index in begun or range(submit.sampling.n)}
        self.under_way[submit.sequence_id] = Computing(recipient, submit, have, 0)
        return submit.sequence_id

    def done(self, sequence_id: int) -> None:
        assert not self.under_way.pop(sequence_id).have

    def cancel(self, sequence_id: int) -> None:
        self.under_way.pop(sequence_id)

    # What happens

    def compute(self, rng: random.Random) -> None:
        for sequence in list(self.under_way.values()):
            sequence.recipient.heard(sequence.step(rng))

    def fail(self, code: "worker_pb2.SequenceErrorCode.ValueType") -> None:
        for sequence_id in list(self.under_way):
            sequence = self.under_way.pop(sequence_id)
            error = worker_pb2.SequenceError(code=code)
            sequence.recipient.heard(worker_pb2.SequenceOutput(sequence_id=sequence_id, error=error))

    def lose(self, fault: Fault) -> None:
        self.takes_requests = False
        for sequence_id in list(self.under_way):
            self.under_way.pop(sequence_id).recipient.lost(fault)

    def come_back(self) -> None:
        if not self.takes_requests:
            self.takes_requests, self.connection = True, self.connection + 1


class Fleet:
    def __init__(self, links: list[Link]) -> None:
        self.links = links

    def links_of(self, model: ServedModel) -> list[Link]:
        return [link for link in self.links if link.takes_requests]

    def no_worker(self, model: str) -> NoWorkerError:
        return NoWorkerError("none")


class AnyOf:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, placement: object, candidates: list[str], now: float) -> Choice:
        return Choice(self._rng.choice(candidates))


class World:
    def __init__(self, rng: random.Random, num_completions: int, max_moves: int = 100) -> None:
        self.rng = rng
        self.links = [Link(name) for name in "abc"]
        self.arrivals = Arrivals()
        observer = NullObserver()
        placing = Placing(cast("Any", Fleet(self.links)), cast("Any", AnyOf(rng)), self.arrivals, observer)
        config = FailoverConfig(max_moves, 3600.0, backoff_initial_s=1e-6, backoff_max_s=1e-6)
        self.pace = Pace(0.0, 0.0, 1.0)
        self.dispatcher = Dispatcher(placing, config, StreamLimits(self.pace, 1 << 20), observer)
        sampling = inference_pb2.SamplingParams(max_new_tokens=LENGTH, n=num_completions, seed=3)
        generation = Generation("r", "acme", "", "", (Segment(b"k" * 16, PROMPT),), sampling)
        deadline = asyncio.get_running_loop().time() + 600
        self.order = Order(MODEL, generation, deadline, explanation=Explanation())

    def happen(self, *, begun: bool) -> None:
        """`begun`: its client has something. Before, a request of which a worker says that it failed may be refused."""
        link = self.rng.choice(self.links)
        errors = list(ERRORS) if begun else []
        name = self.rng.choice(["compute"] * 6 + ["lost", "silent", "stalled", "back", "back", *errors])
        if name == "compute":
            link.compute(self.rng)
        elif name == "back":
            link.come_back()
            self.arrivals.notify()
        elif name in ERRORS:
            link.fail(ERRORS[name])
        else:
            link.lose(Fault(name))

    @property
    def is_at_rest(self) -> bool:
        return self.pace.num_streams == 0 and not any(link.under_way for link in self.links)


@dataclass
class Client:
    """Reads when it likes."""

    token_ids: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[float]] = field(default_factory=dict)
    prompt_logprobs: list[float] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    admissions: int = 0

    async def read(self, stream: TokenStream, num_completions: int) -> None:
        while len(self.finished) < num_completions:
            delta = await stream.take()
            message, index = delta.message("r"), delta.index
            self.token_ids.setdefault(index, []).extend(message.token_ids)
            self.texts[index] = self.texts.get(index, "") + message.text
            self.logprobs.setdefault(index, []).extend(entry.logprob for entry in message.logprobs)
            self.prompt_logprobs += [entry.logprob for entry in message.prompt_logprobs]
            self.admissions += delta.admission is not None
            if delta.finished:
                self.finished.append(index)


async def turns(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the world stands still meanwhile
            await asyncio.sleep(0)


async def live(seed: int, num_completions: int, num_events: int) -> None:
    rng = random.Random(seed)
    world, client = World(rng, num_completions), Client()
    with await world.dispatcher.begin(world.order) as stream:
        reading = asyncio.create_task(client.read(stream, num_completions))
        for _ in range(num_events):
            world.happen(begun=bool(client.token_ids))
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
        async with asyncio.timeout(20):
            while not reading.done():
                for link in world.links:
                    if not link.under_way:
                        link.lose(Fault.LOST)
                    link.come_back()
                    link.compute(rng)
                world.arrivals.notify()
                await asyncio.sleep(0)
        await reading
    for index in range(num_completions):
        assert client.token_ids[index] == [token(index, position) for position in range(LENGTH)]
        assert client.texts[index] == "".join(text(index, position) for position in range(LENGTH))
        assert client.logprobs[index] == [-1.0 - position for position in range(LENGTH)]
    assert client.prompt_logprobs == [-float(position) for position in range(len(PROMPT) - 1)]
    assert sorted(client.finished) == list(range(num_completions))
    assert client.admissions == 1
    assert world.is_at_rest


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 60))
def test_a_client_sees_an_undisturbed_run(seed: int, num_completions: int, num_events: int) -> None:
    asyncio.run(live(seed, num_completions, num_events))


async def leave(seed: int, num_completions: int, num_events: int) -> None:
    world = World(random.Random(seed), num_completions)
    with await world.dispatcher.begin(world.order):
        for _ in range(num_events):
            world.happen(begun=True)
            await asyncio.sleep(0)
    assert world.is_at_rest
    num_submits = sum(len(link.submits) for link in world.links)
    for link in world.links:
        link.come_back()
    world.arrivals.notify()
    for _ in range(5):
        await asyncio.sleep(0)
    assert sum(len(link.submits) for link in world.links) == num_submits
    assert world.is_at_rest


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 30))
def test_whenever_a_client_leaves_nothing_is_left_at_any_worker(
    seed: int, num_completions: int, num_events: int
) -> None:
    asyncio.run(leave(seed, num_completions, num_events))


async def test_a_request_whose_stream_is_ended_while_it_waits_is_sent_to_nobody() -> None:
    world = World(random.Random(1), 1)
    for link in world.links:
        link.lose(Fault.LOST)
    begun = asyncio.create_task(world.dispatcher.begin(world.order))
    await turns(lambda: world.pace.num_streams == 1)
    for link in world.links:
        link.come_back()
    world.arrivals.notify()  # it has not looked yet
    world.dispatcher.fail_all(UnavailableError("the gateway ends"))
    with await begun as stream, pytest.raises(UnavailableError, match="the gateway ends"):
        await stream.take()
    assert not any(link.submits for link in world.links)
    assert world.is_at_rest


async def test_a_worker_that_was_forgotten_and_found_again_under_its_address_has_not_failed_yet() -> None:
    world, client = World(random.Random(1), 1), Client()
    world.links[:] = [Link("a"), Link("b")]
    with await world.dispatcher.begin(world.order) as stream:
        for _ in range(2):
            await turns(lambda: any(link.under_way for link in world.links))
            (holder,) = [link for link in world.links if link.under_way]
            holder.lose(Fault.LOST)
            world.links.remove(holder)
            world.links.append(Link(holder.address))
        await turns(lambda: any(link.under_way for link in world.links))
        (holder,) = [link for link in world.links if link.under_way]
        assert holder in world.links
        assert holder.connection == 1
        reading = asyncio.create_task(client.read(stream, 1))
        while holder.under_way:
            holder.compute(world.rng)
        await reading
    assert world.is_at_rest


@pytest.mark.parametrize("max_moves", [1, 2, 5])
async def test_losses_beyond_the_moves_that_there_are_end_the_stream(max_moves: int) -> None:
    world, client = World(random.Random(1), 1, max_moves), Client()

    def holder() -> Link | None:
        return next((link for link in world.links if link.under_way), None)

    with await world.dispatcher.begin(world.order) as stream:
        reading = asyncio.create_task(client.read(stream, 1))
        for _ in range(max_moves + 1):
            await turns(lambda: holder() is not None)
            link = holder()
            assert link is not None
            next(iter(link.under_way.values())).recipient.heard(
                worker_pb2.SequenceOutput(token_ids=[token(0, len(client.token_ids.get(0, [])))])
            )
            await asyncio.sleep(0)
            link.lose(Fault.LOST)
            link.come_back()
        with pytest.raises(StreamLostError) as lost:
            await reading
    assert lost.value.metadata["moves"] == str(max_moves)
    assert lost.value.metadata["sentTokens"] == str(max_moves + 1)
    assert sum(len(link.submits) for link in world.links) == max_moves + 1
    assert world.is_at_rest
