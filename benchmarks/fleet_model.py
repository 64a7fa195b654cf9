"""A fleet in virtual time: real caches behind modelled servers, real views, index and score in front of them.

A worker computes one prompt after the other, at a fixed speed; a sequence then decodes beside that for a fixed time per
token. Its cache is the real one, and tells what it holds as over the wire, some milliseconds later. So does its load.
No process, no clock: an hour of traffic takes as long as hashing and caching it.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from gateway.dispatch.worker_view import FleetPages, WorkerView
from gateway.observer import NullObserver
from gateway.routing.router import Placement, Router
from hicache.cache import PrefixCache
from hicache.copies.cost import LoadCostConfig, LoadCostModel
from hicache.copies.fake_transfer import InstantTransfer
from hicache.events import CacheEvent, EventLog
from hicache.host import MirrorRules
from hicache.keys import Int32Array, Namespace, PrefixKey
from hicache.lease import Lease
from hicache.radix.naming import PageNames
from hicache.tiered import HostTier, TieredCache
from radixgate.v1 import inference_pb2, worker_pb2
from worker.rpc.cache_messages import digest_message, event_message

NAME_PAGE = 64
SEED = b"a model"
NAMESPACE = Namespace(b"benchmark tenant")
_ANY = 2**31 - 1
_COPY_WHATEVER_LEAVES = MirrorRules(low_watermark=0.0, high_watermark=0.0, max_flying_tokens=_ANY, max_copy_tokens=_ANY)


@dataclass(frozen=True, slots=True)
class Request:
    at_s: float
    prompt: Int32Array
    output_tokens: int = 1
    session: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerModel:
    """What all workers of a fleet have in common."""

    device_slots: int
    host_slots: int = 0
    page_size: int = 16
    prefill_tokens_per_s: float = 20_000.0
    load_tokens_per_s: float = 200_000.0
    decode_step_s: float = 0.02
    delay_s: float = 0.002  # of a message, each way
    report_delay_s: float = 0.05  # of what nobody waits for


class Agenda:
    """What is to happen, by its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (max(time, self.now), next(self._numbers), do))

    def run(self) -> None:
        while self._due:
            self.now, _, do = heapq.heappop(self._due)
            do()


@dataclass(slots=True)
class _Job:
    request: Request
    key: PrefixKey
    link: "_Link"
    sequence_id: int
    expected_missing: int  # tokens, when it arrived
    lease: Lease | None = None


@dataclass(slots=True)
class _Link:
    """A worker's end of the stream of one gateway."""

    view: WorkerView
    jobs: set[int] = field(default_factory=set)
    waiting_tokens: int = 0  # of its jobs that have not begun


@dataclass(slots=True)
class Tally:
    """What became of the requests of one worker."""

    requests: int = 0
    prompt_tokens: int = 0
    device_tokens: int = 0
    host_tokens: int = 0
    first_token_s: list[float] = field(default_factory=list)

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.device_tokens - self.host_tokens


class ModelWorker:
    """Serves prompts one after the other, and tells all its gateways what it holds."""

    def __init__(self, name: str, model: WorkerModel, agenda: Agenda, speed: float = 1.0) -> None:
        self.name = name
        self.tally = Tally()
        self.sequence_seconds = 0.0  # the sum of the times that its sequences took
        self._in_flight = 0
        self._counted_at = 0.0
        self._model = model
        self._agenda = agenda
        self._prefill_tokens_per_s = model.prefill_tokens_per_s * speed
        self._told: list[worker_pb2.CacheEvent] = []
        self.log = EventLog(PageNames(NAME_PAGE, SEED), capacity=1, on_event=self._on_event)
        self.cache = _cache(model, self.log)
        self._queue: deque[_Job] = deque()
        self._current: _Job | None = None
        self._began_at = self._ends_at = 0.0
        self._links: list[_Link] = []
        self._report_due = False

    def describe(self) -> worker_pb2.GetModelResponse:
        return worker_pb2.GetModelResponse(
            worker_id=self.name,
            page_size=self._model.page_size,
            name_seed=SEED,
            name_page_size=NAME_PAGE,
        )

    def connect(self, view: WorkerView) -> _Link:
        link = _Link(view)
        self._links.append(link)
        view.connected(self.describe())
        self._send(link, worker_pb2.ConnectResponse(digest=digest_message(self.log.digest())))
        return link

    def submit(self, job: _Job) -> None:
        peeked = self.cache.peek(job.key, max_tokens=len(job.key) - 1)
        job.expected_missing = len(job.key) - peeked.device - peeked.host
        job.link.waiting_tokens += job.expected_missing
        job.link.jobs.add(job.sequence_id)
        self._count(1)
        self._queue.append(job)
        self._begin_next()
        self._report_soon()

    def _count(self, change: int) -> None:
        now = self._agenda.now
        self.sequence_seconds += self._in_flight * (now - self._counted_at)
        self._in_flight, self._counted_at = self._in_flight + change, now

    def _begin_next(self) -> None:
        if self._current is not None or not self._queue:
            return
        now, job = self._agenda.now, self._queue[0]
        lease = self.cache.acquire(job.key, now=now, max_tokens=len(job.key) - 1)
        self.cache.prepare(len(job.key) - lease.num_tokens, now=now)
        lease.load_back(now=now)
        missing = len(job.key) - lease.num_tokens
        self.cache.prepare(missing, now=now)
        self.cache.tick(now)
        if not lease.reserve(missing, now=now):
            lease.release()
            assert self._in_flight > len(self._queue), f"{self.name} has no room for {len(job.key)} tokens"
            return  # until a sequence ends
        self._queue.popleft()
        job.link.waiting_tokens -= job.expected_missing
        job.lease, hit, tally = lease, lease.hit, self.tally
        tally.requests += 1
        tally.prompt_tokens += len(job.key)
        tally.device_tokens += hit.device
        tally.host_tokens += hit.host
        self._current, self._began_at = job, now
        self._ends_at = now + missing / self._prefill_tokens_per_s + hit.host / self._model.load_tokens_per_s
        cached = inference_pb2.CachedTokens(device=hit.device, host=hit.host)
        admission = worker_pb2.Admission(prompt_tokens=len(job.key), cached=cached)
        output = worker_pb2.SequenceOutput(sequence_id=job.sequence_id, admission=admission)
        self._tell(job.link, output)
        self._agenda.at(self._ends_at, self._prefilled)

    def _prefilled(self) -> None:
        job, self._current = self._current, None
        assert job is not None
        assert job.lease is not None
        now = self._agenda.now
        self.tally.first_token_s.append(now - job.request.at_s)
        job.lease.commit(job.key, now=now)
        self._tell(job.link, worker_pb2.SequenceOutput(sequence_id=job.sequence_id, token_ids=[1]))
        steps = job.request.output_tokens - 1
        if steps:
            self._agenda.at(now + steps * self._model.decode_step_s, lambda: self._ended(job))
        else:
            self._ended(job)
        self._begin_next()

    def _ended(self, job: _Job) -> None:
        assert job.lease is not None
        now, steps = self._agenda.now, job.request.output_tokens - 1
        if steps and job.lease.reserve(steps, now=now):
            # Nobody knows the tokens: they are like no others, and in the way.
            own = np.arange(_ANY - steps - job.sequence_id % 100_000_000, _ANY - job.sequence_id % 100_000_000)
            job.lease.commit(job.key.extend(own.astype(np.int32)), now=now)
        job.lease.release()
        job.link.jobs.discard(job.sequence_id)
        self._count(-1)
        finished = worker_pb2.SequenceOutput(
            sequence_id=job.sequence_id, finish_reason=inference_pb2.FINISH_REASON_LENGTH
        )
        self._tell(job.link, finished)
        self._begin_next()

    # ------------------------------------------------------------------------------------------------ what it tells

    def _on_event(self, event: CacheEvent) -> None:
        self._told.append(event_message(event))

    def _tell(self, link: _Link, output: worker_pb2.SequenceOutput) -> None:
        """As a step does: the news of a sequence to its gateway, what has changed in the cache to all."""
        events, self._told = self._told, []
        for each in self._links:
            outputs = [output] if each is link else []
            if outputs or events:
                message = worker_pb2.ConnectResponse(outputs=outputs, cache_events=events, load=self._load(each))
                self._send(each, message)
        self._report_soon()

    def _report_soon(self) -> None:
        if not self._report_due:
            self._report_due = True
            self._agenda.at(self._agenda.now + self._model.report_delay_s, self._report)

    def _report(self) -> None:
        self._report_due = False
        for link in self._links:
            self._send(
                link, worker_pb2.ConnectResponse(load=self._load(link), digest=digest_message(self.log.digest()))
            )

    def _load(self, link: _Link) -> worker_pb2.WorkerLoad:
        left = 0
        if self._current is not None:
            left = int(max(0.0, self._ends_at - self._agenda.now) * self._prefill_tokens_per_s)
        own_left = left if self._current is not None and self._current.link is link else 0
        return worker_pb2.WorkerLoad(
            running_sequences=self._in_flight - len(self._queue),
            waiting_sequences=len(self._queue),
            pending_tokens=left + sum(each.waiting_tokens for each in self._links),
            own_pending_tokens=own_left + link.waiting_tokens,
            own_sequences=len(link.jobs),
            prefill_tokens_per_s=self._prefill_tokens_per_s if self.tally.requests else 0.0,
            load_tokens_per_s=self._model.load_tokens_per_s,
        )

    def _send(self, link: _Link, message: worker_pb2.ConnectResponse) -> None:
        self._agenda.at(self._agenda.now + self._model.delay_s, lambda: _deliver(link.view, message))


class Forecasts(NullObserver):
    """Counts how often what was expected of a cache was what came."""

    def __init__(self) -> None:
        self.right = self.over = self.under = 0
        self.agreed = self.disagreed = self.snapshots = 0

    def hit_predicted(self, worker: str, predicted_tokens: int, cached_tokens: int, error_tokens: int) -> None:
        self.right += error_tokens == 0
        self.over += error_tokens > 0
        self.under += error_tokens < 0

    def cache_digest_compared(self, worker: str, agrees: bool) -> None:
        self.agreed += agrees
        self.disagreed += not agrees

    def cache_snapshot_taken(self, worker: str) -> None:
        self.snapshots += 1


class ModelGateway:
    """Sends requests to the workers that its router chooses."""

    def __init__(
        self,
        workers: Sequence[ModelWorker],
        make_router: Callable[[FleetPages], Router],
        model: WorkerModel,
        agenda: Agenda,
        max_pages: int = 4_000_000,
    ) -> None:
        self.pages = FleetPages(max_pages)
        self.forecasts = Forecasts()
        self._router = make_router(self.pages)
        self._delay_s = model.delay_s
        self._agenda = agenda
        self._ids = count(1)
        self._links: dict[str, tuple[ModelWorker, WorkerView, _Link]] = {}
        for worker in workers:
            self.connect(worker)

    def connect(self, worker: ModelWorker) -> None:
        view = WorkerView(worker.name, self.pages, self.forecasts, lambda: self._agenda.now)
        self._links[worker.name] = (worker, view, worker.connect(view))

    def send(self, request: Request) -> str:
        """Return the worker that gets it."""
        key = PrefixKey.of(NAMESPACE, request.prompt)
        candidates = [view.candidate(0) for _, view, _ in self._links.values()]
        choice = self._router.choose(Placement("", key, session=request.session), candidates, self._agenda.now)
        worker, view, link = self._links[choice.worker]
        sequence_id = next(self._ids)
        view.sent(worker_pb2.Submit(sequence_id=sequence_id), key)
        job = _Job(request, key, link, sequence_id, 0)
        self._agenda.at(self._agenda.now + self._delay_s, lambda: worker.submit(job))
        return choice.worker


class ModelFleet:
    """Workers and gateways over one agenda; requests go to the gateways in turn."""

    def __init__(
        self,
        model: WorkerModel,
        num_workers: int,
        make_router: Callable[[FleetPages], Router],
        *,
        num_gateways: int = 1,
        speeds: Sequence[float] = (),
    ) -> None:
        self.agenda = Agenda()
        self.workers = [
            ModelWorker(f"w{i}", model, self.agenda, speeds[i] if speeds else 1.0) for i in range(num_workers)
        ]
        self.gateways = [ModelGateway(self.workers, make_router, model, self.agenda) for _ in range(num_gateways)]

    def run(self, requests: Iterator[Request], each: Callable[[int], None] = lambda served: None) -> None:
        """Serve them all to their end."""
        numbers = count()

        def arrive(request: Request) -> None:
            number = next(numbers)
            self.gateways[number % len(self.gateways)].send(request)
            each(number)
            schedule()

        def schedule() -> None:
            request = next(requests, None)
            if request is not None:
                self.agenda.at(request.at_s, lambda: arrive(request))

        schedule()
        self.agenda.run()


def _deliver(view: WorkerView, message: worker_pb2.ConnectResponse) -> None:
    asked = view.told(message)
    assert not asked, "nothing is lost here, so nothing is asked for"
    for output in message.outputs:
        view.heard(output)
        if output.WhichOneof("end") is not None:
            view.ended(output.sequence_id)


def _cache(model: WorkerModel, log: EventLog) -> PrefixCache:
    if not model.host_slots:
        return PrefixCache(model.device_slots, page_size=model.page_size, events=log)
    host = HostTier(
        num_slots=model.host_slots,
        transfer=InstantTransfer(),
        rules=_COPY_WHATEVER_LEAVES,
        cost=LoadCostModel(LoadCostConfig(load_back_threshold=1)),
    )
    return TieredCache(model.device_slots, host, page_size=model.page_size, events=log)
