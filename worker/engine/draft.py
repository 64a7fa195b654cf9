"""A step while it is being decided: what it has room for yet, and who does what in it. Decides nothing itself."""

from worker.batch import BASE_MODEL
from worker.engine.sequence import Sequence
from worker.engine.step import Chunk, Step

_MAX_SCORES = 64
"""Tokens of prompts in one step that get log probabilities: each takes a row of logits as wide as the vocabulary."""


class Draft:
    """A step with room for `max_tokens` tokens. A sequence has one chunk of it at most."""

    def __init__(self, max_tokens: int) -> None:
        self.budget = max_tokens
        self.scores = _MAX_SCORES  # tokens of prompts whose log probabilities may yet be asked for
        self.admitted: list[Sequence] = []
        self.paused: list[Sequence] = []
        self.started: list[Sequence] = []
        self._chunks: dict[int, Chunk] = {}  # by order of the sequence

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        start = sequence.num_computed
        self._chunks[sequence.order] = chunk = Chunk(sequence, start, start + num_tokens)
        self.budget -= num_tokens
        self.scores -= chunk.num_scores

    def num_tokens(self, sequence: Sequence) -> int:
        """Return how many tokens of `sequence` are part of the step so far."""
        chunk = self._chunks.get(sequence.order)
        return 0 if chunk is None else chunk.end - chunk.start

    def drop(self, sequence: Sequence) -> None:
        chunk = self._chunks.pop(sequence.order, None)
        if chunk is not None:
            self.budget += chunk.end - chunk.start
            self.scores += chunk.num_scores

    def step(self) -> Step:
        chunks = tuple(self._chunks.values())
        if any(chunk.sequence.adapter_place is not None for chunk in chunks):
            chunks = tuple(sorted(chunks, key=_adapter_place))  # side by side they are computed together
        return Step(chunks, tuple(self.admitted), tuple(self.paused), tuple(self.started))


def _adapter_place(chunk: Chunk) -> int:
    place = chunk.sequence.adapter_place
    return BASE_MODEL if place is None else place
