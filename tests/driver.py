"""Drives an engine by hand: submit, step until all have ended, collect what came out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hicache.keys import Namespace, PrefixKey
from worker.batch import SamplingParams, TokenLogprobs
from worker.engine.engine import Engine
from worker.engine.ports import Admission, FinishReason, Request, SequenceId
from worker.errors import Failure

NAMESPACE = Namespace(b"one tenant's key")
MAX_STEPS = 100_000


@dataclass
class Answer:
    """Everything that came out for one completion."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    admission: Admission | None = None
    finish: FinishReason | Failure | None = None

    @property
    def cached(self) -> int:
        assert self.admission is not None
        return self.admission.hit.total


def request(
    number: int,
    token_ids: Sequence[int],
    *,
    namespace: Namespace = NAMESPACE,
    params: SamplingParams | None = None,
    priority: int = 0,
) -> Request:
    return Request(
        sequence_id=(0, number),
        request_id=f"r{number}",
        key=PrefixKey.of(namespace, np.array(token_ids, dtype=np.int32)),
        params=params or SamplingParams(max_new_tokens=32, temperature=0.0),
        tenant="tenant",
        priority=priority,
    )


def run(engine: Engine, requests: Iterable[Request]) -> list[Answer]:
    """Submit all of `requests`, step until every one has ended, and return the answers in their order."""
    return [first for first, *_ in run_completions(engine, requests)]


def run_completions(engine: Engine, requests: Iterable[Request]) -> list[list[Answer]]:
    """As `run`, with all completions of each request."""
    answers: dict[SequenceId, list[Answer]] = {}
    for each in requests:
        answers[each.sequence_id] = [Answer() for _ in range(each.params.n)]
        engine.submit(each, now=0.0)
    for step in range(MAX_STEPS):
        if not engine.has_work:
            return list(answers.values())
        for output in engine.step(now=float(step)):
            answer = answers[output.sequence_id][output.index]
            assert answer.finish is None, "news of a sequence that has ended"
            answer.token_ids += output.token_ids
            answer.text += output.text
            answer.logprobs += output.logprobs
            answer.prompt_logprobs += output.prompt_logprobs
            answer.admission = output.admission or answer.admission
            answer.finish = output.finish
    raise AssertionError(f"not done after {MAX_STEPS} steps")
