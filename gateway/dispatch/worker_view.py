"""What this gateway knows of one worker: how busy it is, and what it should have cached."""

from collections.abc import Sequence
from typing import Protocol

from gateway.routing.router import Candidate
from gateway.routing.sent import Expectation, SentPrefixes
from hicache.keys import PrefixKey
from radixgate.v1 import worker_pb2


class ViewObserver(Protocol):
    def hit_predicted(self, worker: str, predicted_tokens: int, cached_tokens: int, error_tokens: int) -> None: ...


class WorkerView:
    """Belongs to the link to the worker, which says what it sends and passes on what it is told.

    Invariant: `_expected` has sequences between `sent` and `ended` only.
    """

    def __init__(self, worker: str, observer: ViewObserver) -> None:
        self._worker = worker
        self._observer = observer
        self._load = worker_pb2.WorkerLoad()
        self._sent = SentPrefixes()
        self._expected: dict[int, Expectation] = {}  # by sequence

    def candidate(self, in_flight: int) -> Candidate:
        """Return what a choice of a worker may depend on. `in_flight` are this gateway's requests there."""
        return Candidate(self._worker, in_flight, self._load.running_sequences, self._load.waiting_sequences)

    def connected(self, described: worker_pb2.GetModelResponse) -> None:
        """A connection to the worker begins."""
        self._load = worker_pb2.WorkerLoad()

    def lost(self) -> None:
        """The connection is gone: whoever comes back under the address may have nothing."""
        self._sent.forget()

    def sent(self, submit: worker_pb2.Submit, key: PrefixKey) -> None:
        """A request is on its way to the worker."""
        if not submit.sampling.HasField("prompt_logprobs"):  # for these nothing is taken from the cache
            self._expected[submit.sequence_id] = self._sent.sent(key)

    def told(self, message: worker_pb2.ConnectResponse) -> Sequence[worker_pb2.ConnectRequest]:
        """The worker has said something, of itself and of its cache. Returns what it is to be asked."""
        if message.HasField("load"):
            self._load.CopyFrom(message.load)
        return ()

    def heard(self, output: worker_pb2.SequenceOutput) -> None:
        """There is news of a sequence that has not ended: look at it beside what was expected."""
        expected = self._expected.get(output.sequence_id)
        if expected is None:
            return
        if output.HasField("admission"):
            cached = output.admission.cached
            delivered = cached.device + cached.host + cached.storage
            error = expected.admitted(delivered)
            self._observer.hit_predicted(self._worker, expected.tokens, delivered, error)
        if output.token_ids or output.WhichOneof("end") == "finish_reason":
            expected.generated(output.index, output.token_ids)

    def ended(self, sequence_id: int) -> None:
        """A sequence has ended, or is about to be cancelled."""
        if (expected := self._expected.pop(sequence_id, None)) is not None:
            expected.ended()
