"""How many prompt tokens a worker has yet to compute: what it reports, and what its report cannot know of yet.

A report is late, and counts what it counts. Beside it stand the requests that this gateway has sent there:

    there has been news of it       the report has it
    none yet, among the first ones  the report has it, as far as it counts more of this gateway's than there was news of
    none yet, one of the others     it was on its way: it comes on top, with what this gateway knows of it
"""

from dataclasses import dataclass
from itertools import islice


@dataclass(slots=True)
class _Request:
    missing_tokens: int  # of its prompt, as far as known yet to be computed
    sequences: int  # as which the worker counts it
    has_news: bool = False


@dataclass(frozen=True, slots=True)
class Pending:
    """What a worker has to do."""

    tokens: int
    unreported_sequences: int  # that its report does not count


class Backlog:
    """Of one connection to one worker.

    Invariant: `_quiet` has the requests without news, in the order in which they were sent; `_heard_sequences` and
    `_heard_tokens` are the sums of all others.
    """

    def __init__(self) -> None:
        self._requests: dict[int, _Request] = {}
        self._quiet: dict[int, _Request] = {}
        self._heard_sequences = 0
        self._heard_tokens = 0
        self._last_sent = 0
        # Of the last report.
        self._pending_tokens = 0
        self._own_tokens = 0
        self._own_sequences = 0
        self._reported_at = 0  # the last one that had been sent then

    def __len__(self) -> int:
        return len(self._requests)

    def pending(self) -> Pending:
        """Return what the worker has to do as of now. Costs O(requests without news)."""
        own_tokens, on_its_way, unreported = self._heard_tokens, 0, 0
        num_reported = self._num_reported()
        for place, request in enumerate(self._quiet.values()):
            if place < num_reported:
                own_tokens += request.missing_tokens
            else:
                on_its_way += request.missing_tokens
                unreported += request.sequences
        others = max(0, self._pending_tokens - self._own_tokens)
        # Both are bounds from above: the report knows how far a prompt has come, this gateway what is cached of it.
        return Pending(others + min(self._own_tokens, own_tokens) + on_its_way, unreported)

    def reported(self, pending_tokens: int, own_tokens: int, own_sequences: int) -> None:
        """The worker has said what it has yet to compute, of all and of this gateway's."""
        self._pending_tokens = pending_tokens
        self._own_tokens = own_tokens
        self._own_sequences = own_sequences
        self._reported_at = self._last_sent

    def sent(self, sequence_id: int, missing_tokens: int, sequences: int) -> None:
        """A request is on its way. Ids grow."""
        request = _Request(missing_tokens, sequences)
        self._requests[sequence_id] = self._quiet[sequence_id] = request
        self._last_sent = sequence_id

    def admitted(self, sequence_id: int, missing_tokens: int) -> None:
        """The worker has begun with a request, and has yet to compute so much of its prompt."""
        self._news(sequence_id, missing_tokens, None)

    def began(self, sequence_id: int, sequences: int) -> None:
        """A request has tokens: all of its prompt is computed, and so many completions go on."""
        self._news(sequence_id, 0, sequences)

    def ended(self, sequence_id: int) -> None:
        """The worker has said that a request is over, and has not counted it any more. Harmless if it is not known."""
        request = self._requests.pop(sequence_id, None)
        if request is None:
            return
        if request.has_news:
            self._heard_sequences -= request.sequences
            self._heard_tokens -= request.missing_tokens
        else:
            del self._quiet[sequence_id]

    def cancelled(self, sequence_id: int) -> None:
        """A request is not wanted any more, and the last report may still count it.

        What it has left of its tokens nobody knows: the report stays a bound from above.
        """
        request = self._requests.get(sequence_id)
        if request is None:
            return
        if request.has_news or sequence_id in islice(self._quiet, self._num_reported()):
            self._own_sequences -= request.sequences
        self.ended(sequence_id)

    def check(self) -> None:
        """Recompute the invariant from scratch."""
        heard = [request for request in self._requests.values() if request.has_news]
        assert self._heard_sequences == sum(request.sequences for request in heard)
        assert self._heard_tokens == sum(request.missing_tokens for request in heard)
        quiet = [sequence_id for sequence_id, request in self._requests.items() if not request.has_news]
        assert list(self._quiet) == quiet == sorted(quiet)

    def _num_reported(self) -> int:
        """How many of the requests without news the last report counts: the first ones."""
        counted = self._own_sequences - self._heard_sequences
        for place, (sequence_id, request) in enumerate(self._quiet.items()):
            if counted <= 0 or sequence_id > self._reported_at:
                return place
            counted -= request.sequences
        return len(self._quiet)

    def _news(self, sequence_id: int, missing_tokens: int, sequences: int | None) -> None:
        request = self._requests.get(sequence_id)
        if request is None:
            return
        if request.has_news:
            self._heard_sequences -= request.sequences
            self._heard_tokens -= request.missing_tokens
        else:
            del self._quiet[sequence_id]
            request.has_news = True
        request.missing_tokens = missing_tokens
        if sequences is not None:
            request.sequences = sequences
        self._heard_sequences += request.sequences
        self._heard_tokens += request.missing_tokens
