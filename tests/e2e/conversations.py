"""Conversations for fleets: what was said before comes again with each turn, and is cached somewhere."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from benchmarks.fleet_client import FleetClient, Outcome, tokens_request

TURN_TIMEOUT_S = 90.0
_FIRST_ID = 1000  # ids below it are marks, and letters of answers
_LAST_ID = 1_000_000
_TURNS = 6


def some_tokens(chance: random.Random, num_tokens: int) -> list[int]:
    return [chance.randrange(_FIRST_ID, _LAST_ID) for _ in range(num_tokens)]


@dataclass
class Conversation:
    """One turn after the other. Each asks something new, behind all that was said."""

    name: str  # another one, other questions
    beginning: Sequence[int] = ()  # others may have the same
    question_tokens: int = 100
    answer_tokens: int = 8
    adapter: str = ""
    scope: str = ""
    said: list[int] = field(default_factory=list)  # questions and answers
    known: int = 0  # tokens that a cache of any size would have of the next turn

    def __post_init__(self) -> None:
        self._chance = random.Random(self.name)
        self.said = list(self.beginning)

    async def turn(self, client: FleetClient) -> Outcome:
        """Ask, and remember the answer. What has failed was not said."""
        question = some_tokens(self._chance, self.question_tokens)
        asked = tokens_request([*self.said, *question], self.answer_tokens)
        asked.adapter, asked.scope = self.adapter, self.scope
        outcome = await client.ask(asked, timeout_s=TURN_TIMEOUT_S)
        if not outcome.error:
            self.said += [*question, *outcome.token_ids[0]]
            self.known = len(self.said) - 1  # the last token was put out, and never computed
        return outcome


@dataclass
class Tally:
    """What came of turns."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    known_tokens: int = 0  # that a cache of any size would have had
    errors: list[str] = field(default_factory=list)

    def take(self, outcome: Outcome, known: int) -> None:
        if outcome.usage is None:
            self.errors.append(outcome.error)
            return
        self.prompt_tokens += outcome.usage.prompt_tokens
        self.cached_tokens += outcome.cached
        self.known_tokens += known

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / max(1, self.prompt_tokens)


async def in_rounds(
    client: FleetClient, conversations: Sequence[Conversation], num_turns: int, at_a_time: int, chance: random.Random
) -> Tally:
    """Give each conversation so many turns, all of them one before any has the next, in any order."""
    tally = Tally()
    places = asyncio.Semaphore(at_a_time)

    async def take_turn(conversation: Conversation) -> None:
        async with places:
            known = conversation.known
            tally.take(await conversation.turn(client), known)

    for _ in range(num_turns):
        await asyncio.gather(*map(take_turn, chance.sample(conversations, len(conversations))))
    return tally


@dataclass
class Talks:
    """So many conversations at a time, each of six turns and followed by another one, until told to stop.

    Use with `async with`.
    """

    client: FleetClient
    num_talks: int
    turns: list[tuple[Outcome, int]] = field(default_factory=list)  # those that ended, and what was known of them
    _stopped: bool = False
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._talk(number)) for number in range(self.num_talks)]
        return self

    async def __aexit__(self, *reason: object) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def have_had(self, num_more: int) -> None:
        """Wait for so many further turns."""
        wanted = len(self.turns) + num_more
        async with asyncio.timeout(TURN_TIMEOUT_S):
            while len(self.turns) < wanted:
                self._news.clear()
                await self._news.wait()

    async def tally_of(self, num_turns: int) -> Tally:
        """Return what comes of the next ones."""
        first = len(self.turns)
        await self.have_had(num_turns)
        tally = Tally()
        for outcome, known in self.turns[first : first + num_turns]:
            tally.take(outcome, known)
        return tally

    async def _talk(self, number: int) -> None:
        followed = 0
        # The first ones are shorter, each by another length: at any time there are all turns.
        remaining = 1 + number % _TURNS
        while not self._stopped:
            conversation = Conversation(f"talk {number} {followed}", question_tokens=300, answer_tokens=16)
            while remaining and not self._stopped:
                known = conversation.known
                outcome = await conversation.turn(self.client)
                self.turns.append((outcome, known))
                self._news.set()
                remaining -= not outcome.error
            followed, remaining = followed + 1, _TURNS
