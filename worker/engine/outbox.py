"""Collects what is to be said of completions, and hands it out as one output for each."""

from worker.batch import SampledToken, TokenLogprobs
from worker.engine.ports import Admission, FinishReason, SequenceId, SequenceOutput
from worker.engine.timeline import Timeline
from worker.errors import Failure

CompletionId = tuple[SequenceId, int]
"""A sequence by the request it belongs to, and its index there."""


class _News:
    """What one completion's next output says. Most have one token, so nothing here is a list."""

    __slots__ = ("admission", "finish", "logprobs", "prompt_logprobs", "text", "timeline", "token_ids")

    def __init__(self) -> None:
        self.token_ids: tuple[int, ...] = ()
        self.text = ""
        self.logprobs: tuple[TokenLogprobs, ...] = ()
        self.admission: Admission | None = None
        self.finish: FinishReason | Failure | None = None
        self.prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self.timeline: Timeline | None = None


class Outbox:
    """The news not handed out yet, in the order in which completions first had some; but ends in their own order.

    So the last end of a request comes last.
    """

    def __init__(self) -> None:
        self._news: dict[CompletionId, _News] = {}

    def __len__(self) -> int:
        return len(self._news)

    def __contains__(self, sequence_id: SequenceId) -> bool:
        return any(of == sequence_id for of, _ in self._news)

    def admitted(self, completion: CompletionId, admission: Admission) -> None:
        self._of(completion).admission = admission

    def scored(self, completion: CompletionId, logprobs: tuple[TokenLogprobs, ...]) -> None:
        self._of(completion).prompt_logprobs += logprobs

    def sampled(self, completion: CompletionId, token: SampledToken, text: str) -> None:
        news = self._of(completion)
        news.token_ids += (token.token_id,)
        news.text += text
        if token.logprobs is not None:
            news.logprobs += (token.logprobs,)

    def finished(
        self, completion: CompletionId, finish: FinishReason | Failure, timeline: Timeline | None = None
    ) -> None:
        news = self._news.pop(completion, None) or _News()
        news.finish, news.timeline = finish, timeline
        self._news[completion] = news

    def take(self) -> list[SequenceOutput]:
        """Return the news, which are no longer here then."""
        news, self._news = self._news, {}
        return [
            SequenceOutput(
                sequence_id,
                entry.token_ids,
                entry.text,
                entry.logprobs,
                entry.admission,
                entry.finish,
                index,
                entry.prompt_logprobs,
                entry.timeline,
            )
            for (sequence_id, index), entry in news.items()
        ]

    def _of(self, completion: CompletionId) -> _News:
        news = self._news.get(completion)
        if news is None:
            news = self._news[completion] = _News()
        return news
