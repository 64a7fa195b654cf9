"""What the serving benchmark sends: reproducible prompts of real English text, cut to exact token counts.

The text is the language reference that ships with every Python (`pydoc_data.topics`), so that a run needs no
download. All choices come from one seed.

A workload yields **waves**: requests that are sent all at once. A later wave may depend on what was generated for an
earlier one, so a workload is a generator that is sent those tokens. Nothing here knows a server.
"""

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, fields, replace
from pydoc_data.topics import topics
from typing import Any, Self

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: prompt token ids, and how many tokens to generate (always exactly that many)."""

    tenant: str
    token_ids: Tokens
    max_new_tokens: int
    temperature: float = 0.0  # 0: greedy
    seed: int = 0  # of sampling
    adapter: str = ""  # "": the base model
    scope: str = ""  # part of the cache's namespace


@dataclass(frozen=True, slots=True)
class Wave:
    """Requests that are sent at the same moment. Figures are kept apart by `phase`."""

    phase: str
    turns: tuple[Turn, ...]


# Yields a wave, and is sent what was generated for each of its turns.
Waves = Generator[Wave, Sequence[Tokens], None]


class TokenText:
    """An endless supply of token ids of running text, cut from one tokenised document.

    No two cuts start at the same place, so that unrelated prompts share no long prefix.
    """

    def __init__(self, token_ids: Sequence[int], seed: int | str) -> None:
        self._token_ids = token_ids
        self._random = random.Random(seed)
        self._starts: set[int] = set()

    def cut(self, num_tokens: int) -> Tokens:
        """Return a run of exactly `num_tokens` tokens. Raises ValueError where the document has too few."""
        num_starts = len(self._token_ids) - num_tokens + 1
        if num_starts <= len(self._starts):
            raise ValueError(f"a document of {len(self._token_ids)} tokens has no further {num_tokens} to give")
        start = self._random.randrange(num_starts)
        while start in self._starts:
            start = self._random.randrange(num_starts)
        if num_tokens:
            self._starts.add(start)
        return tuple(self._token_ids[start : start + num_tokens])

    def between(self, low: int, high: int) -> Tokens:
        return self.cut(self._random.randint(low, high))


@dataclass(frozen=True, slots=True)
class _Sized:
    """Counts, and sizes in tokens."""

    def scaled(self, factor: float) -> Self:
        """Return the same with all counts and sizes times `factor`, at least 1 where there was something."""
        counts: dict[str, Any] = {
            field.name: max(1, round(value * factor))
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), int) and value
        }
        return replace(self, **counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst(_Sized):
    """Requests behind one shared prefix, each with a few tokens of its own, all at once."""

    requests: int
    shared: int
    own_low: int
    own_high: int
    output: int
    temperature: float = 0.0

    def waves(self, text: TokenText, tenant: str) -> Waves:
        prefix = text.cut(self.shared)
        prompts = [prefix + text.between(self.own_low, self.own_high) for _ in range(self.requests)]
        turns = (
            Turn(tenant, prompt, self.output, self.temperature, seed=index) for index, prompt in enumerate(prompts)
        )
        yield Wave("all", tuple(turns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chats(_Sized):
    """Chats behind one system prompt. Each turn's prompt is the whole chat so far and a new question."""

    chats: int
    turns: int
    shared: int
    question: int
    output: int

    def waves(self, text: TokenText, tenant: str) -> Waves:
        system = text.cut(self.shared)
        histories = [system] * self.chats
        for _ in range(self.turns):
            prompts = [history + text.cut(self.question) for history in histories]
            answers = yield Wave("all", tuple(Turn(tenant, prompt, self.output) for prompt in prompts))
            histories = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrompt(_Sized):
    """One long prompt on its own (`cold`), then another that differs only in its end (`warm`)."""

    shared: int
    own: int
    output: int

    def waves(self, text: TokenText, tenant: str) -> Waves:
        prefix = text.cut(self.shared)
        for phase in ("cold", "warm"):
            yield Wave(phase, (Turn(tenant, prefix + text.cut(self.own), self.output),))


Workload = Burst | Chats | LongPrompt

WORKLOADS: dict[str, Workload] = {
    "w1": Burst(requests=32, shared=1500, own_low=10, own_high=60, output=32),
    "w2": Chats(chats=8, turns=6, shared=512, question=120, output=48),
    "w3": Burst(requests=16, shared=0, own_low=512, own_high=512, output=32),
    "w4": LongPrompt(shared=3900, own=196, output=16),
    "w5": Burst(requests=16, shared=1000, own_low=0, own_high=0, output=64, temperature=1.0),
    "w6": Burst(requests=1, shared=0, own_low=128, own_high=128, output=64),
}
TITLES = {
    "w1": "32 requests behind 1,500 shared tokens, 32 out",
    "w2": "8 chats of 6 turns, 48 out each",
    "w3": "16 unrelated prompts of 512, 32 out",
    "w4": "4,096 tokens alone, then the same 3,900 again",
    "w5": "16 samples of 64 from one prompt of 1,000",
    "w6": "one stream, 128 in, 64 out",
}


def document(num_characters: int = 200_000) -> str:
    """Return the head of the language reference as one text."""
    return "\n\n".join(topics[name] for name in sorted(topics))[:num_characters]


def shared_prefix(
    text: TokenText, tenants: tuple[str, ...], num_requests: int, prefix_tokens: int, max_new_tokens: int
) -> list[Turn]:
    """Requests of several tenants, each tenant's behind one system prompt of its own, with 10 to 60 tokens added.

    Request i belongs to tenant i modulo their number, as a busy gateway would see them: interleaved.
    """
    prefixes = {tenant: text.cut(prefix_tokens) for tenant in tenants}
    turns = []
    for index in range(num_requests):
        tenant = tenants[index % len(tenants)]
        turns.append(Turn(tenant, prefixes[tenant] + text.between(10, 60), max_new_tokens))
    return turns
