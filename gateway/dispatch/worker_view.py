"""What this gateway knows of one worker: how busy it is, and what it has cached or will have."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.dispatch.cache_messages import digest_of, events_of, holdings_of
from gateway.routing.backlog import Backlog
from gateway.routing.expected import UNTOLD, Expectation, Pages, ToldExpectation, UntoldExpectation
from gateway.routing.following import Following, FollowingObserver
from gateway.routing.index import DEVICE, HOST, PageIndex
from gateway.routing.names import NameScheme
from gateway.routing.router import Candidate
from gateway.routing.stores import Stores
from hicache.keys import PrefixKey
from radixgate.v1 import worker_pb2


class ViewObserver(FollowingObserver, Protocol):
    def hit_predicted(self, worker: str, predicted_tokens: int, cached_tokens: int, error_tokens: int) -> None: ...

    def cache_pages_known(self, worker: str, device: int, host: int) -> None: ...


class FleetPages:
    """What all workers have, as one gateway knows it."""

    def __init__(self, max_pages: int, on_forgotten: Callable[[int], None] = lambda pages: None) -> None:
        """`on_forgotten` is told how many pages there was no room for."""
        self.index = PageIndex(max_pages, on_forgotten)
        self.stores = Stores(self.index)


@dataclass(slots=True)
class _Sent:
    """A request that has not ended."""

    completions: int  # that have not ended, as the worker has said
    expectation: Expectation | None  # None: nothing is taken from the cache for it


class WorkerView:
    """Belongs to the link to the worker, which says what it sends and passes on what it is told.

    Invariant: `_sent` and `_backlog` have the requests between `sent` and `ended`.
    """

    def __init__(
        self,
        worker: str,
        fleet: FleetPages,
        observer: ViewObserver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._fleet = fleet
        self._observer = observer
        self._clock = clock
        self._connected_at = 0.0
        self._load = worker_pb2.WorkerLoad()
        self._resident_adapters: frozenset[str] = frozenset()
        self._pages: Pages | None = None  # None: not connected
        self._following: Following | None = None  # None: not connected, or it tells nothing
        self._store_id = ""
        self._store = fleet.stores.take("")
        self._sent: dict[int, _Sent] = {}
        self._backlog = Backlog()
        self._candidate: Candidate | None = None  # as last made; None: something has changed

    # ------------------------------------------------------------------------------------------------- the choice

    def candidate(self, in_flight: int) -> Candidate:
        """Return what a choice of a worker may depend on. `in_flight` are this gateway's requests there."""
        made = self._candidate
        if made is None or made.open_streams != in_flight:
            made = self._candidate = self._made(in_flight)
        return made

    def _made(self, in_flight: int) -> Candidate:
        load, pending = self._load, self._backlog.pending()
        return Candidate(
            worker=self._worker,
            open_streams=in_flight,
            running_sequences=load.running_sequences,
            waiting_sequences=load.waiting_sequences,
            unreported_sequences=pending.unreported_sequences,
            pending_tokens=pending.tokens,
            prefill_tokens_per_s=load.prefill_tokens_per_s,
            load_tokens_per_s=load.load_tokens_per_s,
            fetch_tokens_per_s=load.fetch_tokens_per_s,
            connected_at=self._connected_at,
            pages=self._pages,
            store=self._store,
            resident_adapters=self._resident_adapters,
        )

    # --------------------------------------------------------------------------------------------- the connection

    def connected(self, described: worker_pb2.GetModelResponse) -> None:
        """A connection to the worker begins."""
        self.lost()
        self._connected_at = self._clock()
        tells = described.name_page_size > 0
        scheme = NameScheme(described.name_seed, described.name_page_size) if tells else UNTOLD
        self._pages = Pages(self._fleet.index, scheme, described.page_size)
        self._store_id = described.store_id if tells else ""
        self._store = self._fleet.stores.take(self._store_id)
        if tells:
            self._following = Following(self._worker, self._pages.holder, self._store, self._observer)

    def lost(self) -> None:
        """The connection is gone: whoever comes back under the address may have nothing."""
        if self._pages is not None:
            self._pages.holder.leave()
            self._fleet.stores.leave(self._store_id)
            self._observer.cache_pages_known(self._worker, 0, 0)
        self._pages = self._following = self._store = None
        self._store_id = ""
        self._load = worker_pb2.WorkerLoad()
        self._resident_adapters = frozenset()
        self._sent.clear()
        self._backlog = Backlog()
        self._candidate = None

    def told(self, message: worker_pb2.ConnectResponse) -> Sequence[worker_pb2.ConnectRequest]:
        """The worker has said something, of itself and of its cache. Returns what it is to be asked."""
        if message.HasField("load"):
            self._load.CopyFrom(message.load)
            load = self._load
            self._backlog.reported(load.pending_tokens, load.own_pending_tokens, load.own_sequences)
            self._candidate = None
        if message.HasField("adapters"):
            self._resident_adapters = frozenset(each.revision for each in message.adapters.adapters if each.resident)
            self._candidate = None
        if self._following is None or self._pages is None:
            return ()
        now, following = self._clock(), self._following
        if message.cache_events:
            following.events(events_of(message))
        if message.HasField("snapshot"):
            part = message.snapshot
            following.snapshot(part.seq, part.part, part.last, holdings_of(part), now)
        if message.HasField("digest"):
            following.compare(digest_of(message.digest))
        if message.cache_events or message.HasField("snapshot"):
            holder = self._pages.holder
            self._observer.cache_pages_known(self._worker, holder.num_pages(DEVICE), holder.num_pages(HOST))
        if following.wants_snapshot(now):
            return (worker_pb2.ConnectRequest(snapshot_query=worker_pb2.SnapshotQuery()),)
        return ()

    # ------------------------------------------------------------------------------------------------- sequences

    def sent(self, submit: worker_pb2.Submit, key: PrefixKey) -> None:
        """A request is on its way to the worker, which is connected. `key` is what it is to compute first."""
        assert self._pages is not None
        expectation: Expectation | None = None
        if not submit.sampling.HasField("prompt_logprobs"):  # for these nothing is taken from the cache
            make = UntoldExpectation if self._following is None else ToldExpectation
            expectation = make(self._pages, key)
        missing = len(key) - (0 if expectation is None else expectation.tokens)
        self._sent[submit.sequence_id] = _Sent(len(submit.continued) or max(1, submit.sampling.n), expectation)
        # Completions of one prompt are one sequence until it is computed.
        self._backlog.sent(submit.sequence_id, missing, max(1, len(submit.continued)))
        self._candidate = None

    def heard(self, output: worker_pb2.SequenceOutput) -> None:
        """There is news of a sequence that has not ended: look at it beside what was expected."""
        sent = self._sent.get(output.sequence_id)
        if sent is None:
            return
        self._candidate = None
        if output.HasField("admission"):
            self._admitted(output.sequence_id, sent, output.admission)
        end = output.WhichOneof("end")
        if end == "error":
            sent.completions = 0
        elif output.token_ids or end is not None:
            sent.completions -= end is not None
            self._backlog.began(output.sequence_id, sent.completions)
            if sent.expectation is not None:
                sent.expectation.generated(output.index, output.token_ids)

    def _admitted(self, sequence_id: int, sent: _Sent, admission: worker_pb2.Admission) -> None:
        cached = admission.cached
        missing = admission.prompt_tokens - cached.device - cached.host - cached.storage
        self._backlog.admitted(sequence_id, max(0, missing))
        if sent.expectation is not None:
            # Of storage nothing is expected for sure.
            delivered = cached.device + cached.host
            error = sent.expectation.admitted(delivered)
            self._observer.hit_predicted(self._worker, sent.expectation.tokens, delivered, error)

    def ended(self, sequence_id: int) -> None:
        """A sequence has ended, or is about to be cancelled."""
        if (sent := self._sent.pop(sequence_id, None)) is not None:
            (self._backlog.ended if sent.completions <= 0 else self._backlog.cancelled)(sequence_id)
            self._candidate = None
            if sent.expectation is not None:
                sent.expectation.ended()
