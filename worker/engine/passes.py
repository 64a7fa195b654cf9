"""A step whose forward pass is under way, and what each of its chunks gets of that. Decides nothing."""

from dataclasses import dataclass
from typing import Any

from worker.batch import AsyncExecutor, Batch, PendingStep, SampledToken
from worker.engine.faults import report
from worker.engine.step import Chunk, Step

_MOST_NAMED = 32
"""Requests that a line of the log names."""


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What the pass made of a chunk."""

    chunk: Chunk
    scores: list[SampledToken]  # tokens of the prompt with their log probabilities
    tokens: list[SampledToken]  # sampled: one, or of a leader one for each completion; none before the prompt's end


@dataclass(frozen=True, slots=True)
class StepUnderWay:
    step: Step
    began_at: float
    _pending: PendingStep | None  # None: it could not even be started

    @classmethod
    def begin(cls, executor: AsyncExecutor, step: Step, batch: Batch, now: float) -> "StepUnderWay":
        """Start the pass. One that cannot be started is like one that fails later."""
        try:
            return cls(step, now, executor.start(batch))
        except Exception as error:  # noqa: BLE001 - whatever it was, its sequences are told as the pass ends
            report("forward pass not started", error, tokens=batch.num_tokens, **_whose(step))
            return cls(step, now, None)

    def results(self) -> list[ChunkResult] | None:
        """Wait for the pass and return what it made of each chunk, or None if it failed. Before anything is committed.

        Its slots are free to be given away only then.
        """
        if self._pending is None:
            return None
        try:
            return self._divided(self._pending.result())
        except Exception as error:  # noqa: BLE001 - whatever a forward pass does, the other sequences go on
            report("forward pass failed", error, tokens=self.step.num_tokens, **_whose(self.step))
            return None

    def _divided(self, sampled: list[SampledToken]) -> list[ChunkResult]:
        """Give each chunk its results, which come in the order of chunks. Raises RuntimeError for another number."""
        results, place = [], 0
        for chunk in self.step.chunks:
            first = place + chunk.num_scores
            end = first + chunk.num_samples
            results.append(ChunkResult(chunk, sampled[place:first], sampled[first:end]))
            place = end
        if len(sampled) != place:
            raise RuntimeError(f"the executor sampled {len(sampled)} tokens, {place} were asked for")
        return results


def _whose(step: Step) -> dict[str, Any]:
    """Return whose sequences a pass was for, as fields of a line in the log."""
    ids = dict.fromkeys(chunk.sequence.request.request_id for chunk in step.chunks)
    return {"sequences": len(step.chunks), "request_ids": list(ids)[:_MOST_NAMED]}
