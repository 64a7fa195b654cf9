"""What has been decided of sequences and is still to be told: to those who count, and to those who asked.

Decides nothing, but that a sequence whose text fails is to end. So all of it can wait until the next forward pass is
under way, and is done beside it.
"""

from collections import deque
from dataclasses import dataclass

from worker.batch import SampledToken, TextStreamFactory, TokenLogprobs
from worker.engine.faults import report
from worker.engine.observer import EngineObserver
from worker.engine.outbox import Outbox
from worker.engine.ports import Admission, FinishReason, Request, SequenceId, SequenceOutput
from worker.engine.sequence import Sequence
from worker.errors import Failure, FailureCode

Finish = FinishReason | Failure


@dataclass(slots=True)
class _Event:
    """A token that was sampled, or the end, or both at once."""

    sequence: Sequence
    at: float
    token: SampledToken | None
    gap_s: float  # since the token before, or since the request arrived
    is_first: bool
    text: str | None  # of the token; None: not known yet
    finish: Finish | None


class Telling:
    """Keeps what happened, in order, until `make` turns it into text, counts and outputs.

    Invariant: of each sequence events are told in the order in which they came, and nothing behind its end.
    """

    def __init__(self, text: TextStreamFactory, observer: EngineObserver) -> None:
        self._text = text
        self._observer = observer
        self._events: deque[_Event] = deque()
        self._outbox = Outbox()

    def __len__(self) -> int:
        """How much is left to tell; 0 for nothing."""
        return len(self._events) + len(self._outbox)

    def __contains__(self, sequence_id: SequenceId) -> bool:
        return sequence_id in self._outbox or any(
            event.sequence.request.sequence_id == sequence_id for event in self._events
        )

    # What happens

    def refused(self, request: Request, failure: Failure) -> None:
        """A request that never becomes a sequence."""
        self._outbox.finished((request.sequence_id, 0), failure)
        self._observer.finished(request.tenant, request.adapter, failure.code.value, 0, 0.0)

    def admitted(self, sequence: Sequence, admission: Admission, at: float) -> None:
        request = sequence.request
        self._outbox.admitted((request.sequence_id, sequence.index), admission)
        if sequence.num_inherited:
            self._observer.continued(request.tenant, request.adapter, admission)
        else:
            self._observer.admitted(request.tenant, request.adapter, admission, at - sequence.arrived_at)

    def scored(self, sequence: Sequence, logprobs: tuple[TokenLogprobs, ...]) -> None:
        """The next tokens of a prompt got their log probabilities."""
        self._outbox.scored((sequence.request.sequence_id, sequence.index), logprobs)

    def sampled(
        self, sequence: Sequence, token: SampledToken, gap_s: float, text: str | None, finish: Finish | None, at: float
    ) -> None:
        """A sequence got `token`, `gap_s` after the one before (or its arrival), and ends with it if `finish` is given.

        `text` is what `read` returned, or None to have it made later.
        """
        self._events.append(_Event(sequence, at, token, gap_s, len(sequence.outputs) == 1, text, finish))

    def ended(self, sequence: Sequence, finish: Finish, at: float) -> None:
        """A sequence ends between two tokens."""
        self._events.append(_Event(sequence, at, None, 0.0, False, "", finish))

    def resume(self, sequence: Sequence) -> bool:
        """Open the text of a sequence, where it stands if it was begun elsewhere; return whether it has ended there.

        What is certain by then has been told. Without stop strings nothing ends, and nobody has to ask before `read`.
        """
        sequence.text = self._text.open(sequence.request.key.token_ids, sequence.request.params.stop)
        return sequence.num_inherited > 0 and sequence.text.push(sequence.outputs[: sequence.num_inherited]).stopped

    def read(self, sequence: Sequence, token_id: int, finish: Finish | None) -> tuple[str, Finish | None]:
        """Return what has become certain of the text with `token_id`, and how the sequence ends, if it does.

        `finish` is how it does as far as tokens go. With an end, all of the text is certain.
        """
        try:
            if sequence.text is None:
                self.resume(sequence)
            assert sequence.text is not None
            if token_id in sequence.end_token_ids:
                return sequence.text.flush(), finish
            delta = sequence.text.push((token_id,))
            if delta.stopped:
                return delta.text, FinishReason.STOP
            return (delta.text if finish is None else delta.text + sequence.text.flush()), finish
        except Exception as error:  # noqa: BLE001 - text that fails is one sequence's trouble
            report("detokenisation failed", error, request_id=sequence.request.request_id)
            return "", Failure(FailureCode.INTERNAL, "the tokens could not be turned into text")

    # What is told

    def make(self) -> list[tuple[Sequence, Finish]]:
        """Tell everything; return who has to end because of it: those whose text failed while they were alive."""
        late: list[tuple[Sequence, Finish]] = []
        while self._events:
            event = self._events.popleft()
            sequence = event.sequence
            if event.token is not None and sequence.fault is None:
                fault = self._say(event, event.token)
                if fault is not None and not sequence.ended:
                    late.append((sequence, fault))
            if event.finish is not None:
                event.finish = sequence.fault or event.finish
                completion = (sequence.request.sequence_id, sequence.index)
                self._outbox.finished(completion, event.finish, sequence.timeline())
            # Last: whatever those who count do, who asked has been answered.
            self._count(event)
        return late

    def take(self) -> list[SequenceOutput]:
        """Return what is ready to be handed out, which is no longer here then."""
        return self._outbox.take()

    def _say(self, event: _Event, token: SampledToken) -> Finish | None:
        """Hand a token out with its text; return what is wrong with that, if anything."""
        sequence, text = event.sequence, event.text
        if text is None:
            text, finish = self.read(sequence, token.token_id, event.finish)
            if finish is not event.finish:
                sequence.fault = finish
        self._outbox.sampled((sequence.request.sequence_id, sequence.index), token, text)
        return sequence.fault

    def _count(self, event: _Event) -> None:
        sequence, request = event.sequence, event.sequence.request
        try:
            if event.token is not None:
                observe = self._observer.first_token if event.is_first else self._observer.next_token
                observe(request.tenant, request.adapter, event.gap_s)
            if event.finish is not None:
                outcome = event.finish.value if isinstance(event.finish, FinishReason) else event.finish.code.value
                self._observer.finished(
                    request.tenant, request.adapter, outcome, sequence.num_sampled, event.at - sequence.arrived_at
                )
        except Exception as error:  # noqa: BLE001 - a count that is lost is no reason to end anybody
            report("observer failed", error, request_id=request.request_id)
