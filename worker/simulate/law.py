"""What a simulated model says next: a function of the tokens before, and where it samples, of seed and position.

Every worker answers the same, in any batch, behind any hit. Of how to sample only matters whether the temperature is 0:
the token of rank r has the probability 2**-(r + 1), and greedy takes rank 0. Penalties and filters change nothing.
"""

import math
from collections.abc import Container, Sequence
from typing import Final

import numpy as np

from worker.batch import SampledToken, SampleRow, TokenLogprobs, Uint32Array
from worker.model.randomness import uniform
from worker.simulate.history import scrambled

_LOG_HALF: Final = math.log(0.5)
_UNIT: Final = 2.0**-53
_GIVEN_LOGPROBS: Final = 1024  # a given token's are multiples of 1/64 down to -16


class TokenLaw:
    """Chooses among `letters`, a power of two of them, and ends with `end_token_id` now and then."""

    def __init__(
        self, letters: Sequence[int], end_token_id: int, end_probability: float, readable: Container[int] = ()
    ) -> None:
        """Where a constraint leaves some that are `readable`, the others are not chosen."""
        if len(letters) & (len(letters) - 1):
            raise ValueError(f"the letters must be a power of two, got {len(letters)}")
        self._letters = tuple(letters)
        self._end_token_id = end_token_id
        self._end_probability = end_probability
        self._readable = readable

    def choose(self, row: SampleRow, history: int) -> SampledToken:
        """Return the token behind a history, given by its digest, or the one that is given."""
        if row.given_token_id is not None:
            return SampledToken(row.given_token_id, self._of_given(row.given_token_id, history, row.num_logprobs))
        greedy = row.params.temperature == 0.0
        drawn = 0.0 if greedy else uniform(row.params.seed, row.position)
        rank = int(-math.log2(1.0 - drawn))
        token_id, logprob = self._chosen(row, history, rank, drawn)
        if row.params.logprobs is None:
            return SampledToken(token_id)
        return SampledToken(token_id, TokenLogprobs(logprob, self._likeliest(history, row.params.logprobs)))

    def _chosen(self, row: SampleRow, history: int, rank: int, drawn: float) -> tuple[int, float]:
        """Return a token and its log probability."""
        if row.allowed is not None:
            return self._of_open(_open_ids(row.allowed, row.banned_token_ids), history, drawn)
        if self._ends(history, drawn) and self._end_token_id not in row.banned_token_ids:
            return self._end_token_id, math.log(self._end_probability)
        token_id = self._of_rank(history, rank)
        while token_id in row.banned_token_ids:
            rank += 1
            token_id = self._of_rank(history, rank)
        return token_id, _LOG_HALF * (rank % len(self._letters) + 1)

    def _of_open(self, open_ids: Sequence[int], history: int, drawn: float) -> tuple[int, float]:
        """Return one of what a constraint leaves: its end where there is one, and else what people can read."""
        if self._end_token_id in open_ids:
            return self._end_token_id, _LOG_HALF
        readable = [token_id for token_id in open_ids if token_id in self._readable] or open_ids
        place = scrambled(history, 2) ^ int(drawn * (1 << 32))
        return readable[place % len(readable)], -math.log(2 * len(readable))

    def _ends(self, history: int, drawn: float) -> bool:
        """Greedy answers end where the history says so; sampled ones depend on what was drawn as well."""
        number = scrambled(history ^ int(drawn * (1 << 53)), 1)
        return (number >> 11) * _UNIT < self._end_probability

    def _of_rank(self, history: int, rank: int) -> int:
        """Return the letter of a rank, another one for each as long as there are."""
        order = scrambled(history)
        step = order >> 32 | 1  # odd: in steps of it, each letter's turn comes
        return self._letters[(order + rank * step) & (len(self._letters) - 1)]

    def _likeliest(self, history: int, number: int) -> tuple[tuple[int, float], ...]:
        return tuple(
            (self._of_rank(history, rank), _LOG_HALF * (rank + 1)) for rank in range(min(number, len(self._letters)))
        )

    def _of_given(self, token_id: int, history: int, num_logprobs: int | None) -> TokenLogprobs | None:
        if num_logprobs is None:
            return None
        logprob = -(scrambled(history, token_id) % _GIVEN_LOGPROBS + 1) / 64
        return TokenLogprobs(logprob, self._likeliest(history, num_logprobs))


def _open_ids(allowed: Uint32Array, banned: Sequence[int]) -> list[int]:
    """Return what a constraint leaves. Something is left, whoever banned what."""
    bits = np.unpackbits(allowed.astype("<u4").view(np.uint8), bitorder="little")
    return [int(token_id) for token_id in np.flatnonzero(bits) if token_id not in banned]
