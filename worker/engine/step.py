"""One step as a value: which sequences compute which of their tokens."""

from dataclasses import dataclass

from worker.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """A sequence's share of a step: its tokens [start, end). It samples if nothing known is left after them.

    Log probabilities of a prompt are asked for on the way.
    """

    sequence: Sequence
    start: int
    end: int

    @property
    def samples(self) -> bool:
        return self.end == self.sequence.num_known

    @property
    def num_scores(self) -> int:
        """How many tokens of the prompt get their log probabilities."""
        return self.sequence.num_scores(self.start, self.end)

    @property
    def num_samples(self) -> int:
        """How many tokens are sampled behind it."""
        return self.sequence.num_next if self.samples else 0


@dataclass(frozen=True, slots=True)
class Step:
    """What the scheduler decided; a decision only, the forward pass is still to be made."""

    chunks: tuple[Chunk, ...]
    admitted: tuple[Sequence, ...] = ()  # running now for the first time
    paused: tuple[Sequence, ...] = ()
    started: tuple[Sequence, ...] = ()  # on a lease, for the first time or after a pause

    @property
    def num_tokens(self) -> int:
        return sum([chunk.end - chunk.start for chunk in self.chunks])

    @property
    def num_prompt_tokens(self) -> int:
        """Those of sequences that compute more than one: that do not decode."""
        return sum([chunk.end - chunk.start for chunk in self.chunks if chunk.end - chunk.start > 1])

    def computes(self, sequence: Sequence) -> bool:
        """Whether `sequence` has a share of it."""
        return any(chunk.sequence is sequence for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a step."""

    admitted: tuple[Sequence, ...]  # that followed a load: it has ended
    void: tuple[Sequence, ...]  # whose share counts for nothing
