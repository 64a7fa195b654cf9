"""Prompts that nobody has asked before, out of tokens that the model is sure to know."""

import random
import string
from collections.abc import Callable, Sequence

_MAX_BYTES, _MAX_TEXTS = 12_000, 6
_ENOUGH, _TOO_FEW = 512, 64
# Mostly words that have tokens of their own, and enough else for models whose tokens are bytes.
_ALPHABETS = (*[string.ascii_lowercase] * 4, string.ascii_letters, string.digits, string.punctuation)
# As many prompts as a tenant may have asked before, by far; and how unlikely a meeting with one of them shall be.
_EARLIER_PROMPTS, _RISK = 1e6, 1e-3


class TooFewTokensError(Exception):
    """The model's tokens do not make prompts that differ."""


def vocabulary_of(
    tokens_of: Callable[[str], Sequence[int]], context_length: int, random_: random.Random
) -> tuple[int, ...]:
    """Return ids of many of a model's tokens, as the model itself makes them of words. `tokens_of` tokenises text.

    A text has no more bytes than a context has tokens, so that it is never too long.
    """
    found: set[int] = set()
    for _ in range(_MAX_TEXTS):
        found.update(tokens_of(_words(min(_MAX_BYTES, context_length), random_)))
        if len(found) >= _ENOUGH:
            break
    if len(found) < _TOO_FEW:
        raise TooFewTokensError(f"random words have {len(found)} different tokens; {_TOO_FEW} are needed")
    return tuple(sorted(found))


def _words(num_bytes: int, random_: random.Random) -> str:
    text = ""
    while len(text) < num_bytes:
        text += "".join(random_.choices(random_.choice(_ALPHABETS), k=random_.randint(1, 7))) + " "
    return text[:num_bytes]


class Prompts:
    """Makes prompts. Within a run no two of them begin with the same token, until all have been used once."""

    def __init__(self, vocabulary: Sequence[int], length: int, random_: random.Random) -> None:
        self._vocabulary = tuple(vocabulary)
        self._random = random_
        self._first: list[int] = []
        self.length = length
        self.nonce = f"{random_.getrandbits(48):012x}"

    @property
    def by_chance(self) -> int:
        """How many leading tokens a new prompt may have in common with some earlier one of its tenant."""
        tokens = 0
        while _EARLIER_PROMPTS / len(self._vocabulary) ** (tokens + 1) > _RISK:
            tokens += 1
        return tokens

    def fresh(self, length: int | None = None) -> tuple[int, ...]:
        if not self._first:
            self._first = self._random.sample(self._vocabulary, len(self._vocabulary))
        rest = (self.length if length is None else length) - 1
        return (self._first.pop(), *self._random.choices(self._vocabulary, k=rest))

    def name(self, what: str) -> str:
        """Return a name that no other run uses."""
        return f"isolation-check-{self.nonce}-{what}"
