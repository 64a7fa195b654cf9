"""Collects what is to be said of sequences, and hands it out as one output for each."""

from worker.batch import SampledToken, TokenLogprobs
from worker.engine.ports import Admission, FinishReason, SequenceId, SequenceOutput
from worker.errors import Failure


class _News:
    """What one sequence's next output says. Most have one token, so nothing here is a list."""

    __slots__ = ("admission", "finish", "logprobs", "text", "token_ids")

    def __init__(self) -> None:
        self.token_ids: tuple[int, ...] = ()
        self.text = ""
        self.logprobs: tuple[TokenLogprobs, ...] = ()
        self.admission: Admission | None = None
        self.finish: FinishReason | Failure | None = None


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

    def sampled(self, sequence_id: SequenceId, token: SampledToken, text: str) -> None:
        news = self._of(sequence_id)
        news.token_ids += (token.token_id,)
        news.text += text
        if token.logprobs is not None:
            news.logprobs += (token.logprobs,)

    def finished(self, sequence_id: SequenceId, finish: FinishReason | Failure) -> None:
        self._of(sequence_id).finish = finish

    def take(self) -> list[SequenceOutput]:
        """Return the news, which are no longer here then."""
        news, self._news = self._news, {}
        return [
            SequenceOutput(sequence_id, entry.token_ids, entry.text, entry.logprobs, entry.admission, entry.finish)
            for sequence_id, entry in news.items()
        ]

    def _of(self, sequence_id: SequenceId) -> _News:
        news = self._news.get(sequence_id)
        if news is None:
            news = self._news[sequence_id] = _News()
        return news
