"""Collects what happened to sequences during a step, and hands it out as one output for each."""

from dataclasses import dataclass, field

from worker.batch import SampledToken, TokenLogprobs
from worker.engine.ports import Admission, FinishReason, SequenceId, SequenceOutput
from worker.errors import Failure


@dataclass(slots=True)
class _News:
    token_ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    admission: Admission | None = None
    finish: FinishReason | Failure | None = None


class Outbox:
    """The news not handed out yet, in the order in which sequences first had some."""

    def __init__(self) -> None:
        self._news: dict[SequenceId, _News] = {}

    def __len__(self) -> int:
        return len(self._news)

    def __contains__(self, sequence_id: SequenceId) -> bool:
        return sequence_id in self._news

    def admitted(self, sequence_id: SequenceId, admission: Admission) -> None:
        self._of(sequence_id).admission = admission

    def sampled(self, sequence_id: SequenceId, token: SampledToken) -> None:
        news = self._of(sequence_id)
        news.token_ids.append(token.token_id)
        if token.logprobs is not None:
            news.logprobs.append(token.logprobs)

    def text(self, sequence_id: SequenceId, text: str) -> None:
        self._of(sequence_id).text.append(text)

    def finished(self, sequence_id: SequenceId, finish: FinishReason | Failure) -> None:
        self._of(sequence_id).finish = finish

    def take(self) -> list[SequenceOutput]:
        """Return the news, which are no longer here then."""
        news, self._news = self._news, {}
        return [
            SequenceOutput(
                sequence_id=sequence_id,
                token_ids=tuple(entry.token_ids),
                text="".join(entry.text),
                logprobs=tuple(entry.logprobs),
                admission=entry.admission,
                finish=entry.finish,
            )
            for sequence_id, entry in news.items()
        ]

    def _of(self, sequence_id: SequenceId) -> _News:
        return self._news.setdefault(sequence_id, _News())
