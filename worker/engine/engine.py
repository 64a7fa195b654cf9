"""The engine: requests in, one step at a time, outputs out.

Each step is decide, do, commit: the scheduler decides on values, the executor makes the forward pass, and what it
sampled is taken in. Driven by one owner, which passes the time in; `EngineThread` is such an owner.

    begin         decide step n, start its forward pass        |
    take_outputs  text and news of step n - 1, beside the pass |  in the meantime `submit` and `cancel` may be called,
    complete      wait for the pass, commit, decide who ends   |  and nothing that the pass uses is freed

`step` does the three in the order begin, complete, take_outputs: the same answers, with the news of step n at its end.
"""

from collections.abc import Callable, Iterable

from hicache.cache import Holdings, PrefixCache
from hicache.events import Snapshot
from hicache.keys import Namespace
from worker.batch import AsyncExecutor, SampledToken, TextStreamFactory
from worker.config import EngineConfig
from worker.engine import waiting
from worker.engine.adapters import AdapterPlaces, AdapterSource, AdapterState, NoAdapters
from worker.engine.batches import BatchBuilder
from worker.engine.beginnings import begin, has_ended
from worker.engine.cache_feed import CacheFeed
from worker.engine.completions import Completions
from worker.engine.constraints import ConstraintFailed
from worker.engine.deadlines import Deadlines
from worker.engine.departures import Departures, OnGone
from worker.engine.faults import report
from worker.engine.floors import Floors
from worker.engine.limits import ModelLimits, refusal
from worker.engine.observer import EngineObserver, NullObserver
from worker.engine.passes import StepUnderWay
from worker.engine.ports import CacheContents, CacheNews, FinishReason, Load, Request, SequenceId, SequenceOutput
from worker.engine.purges import Purges
from worker.engine.room import Room
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Sequence
from worker.engine.speeds import PassSpeeds
from worker.engine.telling import Telling
from worker.errors import Failure, FailureCode

_PREFILL_TOKENS = 64
"""Tokens of a step from which on its duration says how fast prompts are computed."""


class DuplicateSequenceError(ValueError):
    """A sequence of this id is alive already."""


class Engine:
    """Continuous batching over a prefix cache.

    `clock`, where given, must agree with the `now` passed in; it is read once after each forward pass, so that
    latencies include the pass that made the token, and once more where sequences start. Without it nothing takes time.

    Invariant: every completion that has begun gets exactly one output with `finish`; by then its slots and leases are
    free. A Failure of one ends all of its request.
    """

    def __init__(
        self,
        cache: PrefixCache,
        executor: AsyncExecutor,
        text: TextStreamFactory,
        limits: ModelLimits,
        config: EngineConfig,
        *,
        adapters: AdapterSource | None = None,
        observer: EngineObserver | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._cache = cache
        self._executor = executor
        self._limits = limits
        self._config = config
        self._observer = observer or NullObserver()
        self._clock = clock
        self._adapters = AdapterPlaces(adapters or NoAdapters(), config.adapter_patience_s)
        self._departures = Departures(cache, self._adapters)
        self._purges = Purges(cache)
        self._floors = Floors(cache)
        hits = waiting.KnownHits(cache)
        line = waiting.by_name(config.order, config, hits)
        self._scheduler = Scheduler(cache, line, hits, self._adapters, config)
        self._feed = CacheFeed(cache)
        self._speeds = PassSpeeds()
        self._deadlines = Deadlines()
        self._batches = BatchBuilder()
        self._telling = Telling(text, self._observer)
        self._under_way: StepUnderWay | None = None
        # Those that are to end when the step under way has, by their order.
        self._doomed: dict[int, tuple[Sequence, FinishReason | Failure]] = {}
        self._now = 0.0  # as far as anybody said, or the clock after the last pass
        self._completions = Completions()  # those alive
        self._room = Room(self._completions, config.max_running, config.max_waiting)
        self._num_submitted = 0
        self._evicted_tokens = cache.stats().evicted_tokens
        self._closed = False
        self.last_step_tokens = 0  # 0: nothing could be computed

    @property
    def pending(self) -> int:
        """What `idle` still has to see the end of, below the engine: copies, pages on their way."""
        return self._cache.pending

    def idle(self, now: float) -> None:
        """Let the cache go on with what is under way, when there is no step to be made."""
        self._cache.tick(now)
        self.observe_state()

    def flush(self, now: float) -> None:
        """Begin to bring what the cache has to where it outlives this process; `idle` follows while it is `pending`."""
        self._cache.flush(now=now)

    @property
    def has_work(self) -> bool:
        """Whether the next step has something to do or to say."""
        return len(self._completions) > 0 or len(self._telling) > 0 or len(self._departures) > 0

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of a sequence, on the engine's clock."""
        return self._deadlines.earliest()

    @property
    def max_sequence_tokens(self) -> int:
        """The most tokens that one sequence can ever hold in the pool."""
        return self._cache.max_lease_slots

    def submit(self, request: Request, now: float) -> None:
        """Take in a request. One that can't be served is answered by the next step with a Failure.

        Raises DuplicateSequenceError, and changes nothing, for an id that is alive or whose end is still to be told.
        """
        if request.sequence_id in self._completions or request.sequence_id in self._telling:
            raise DuplicateSequenceError(f"sequence {request.sequence_id} is alive already")
        self._floors.say(request, self._completions)
        begun = self._refusal(request) or self._begun(request, now)
        if isinstance(begun, Failure):
            self._telling.refused(request, begun)
            return
        self._make_room(request, now)
        self._num_submitted += request.params.n
        self._scheduler.enqueue(begun, now)  # if that raises, the request was never here
        self._completions.add(begun)
        for sequence in begun:
            self._adapters.joined(sequence)
            self._deadlines.watch(sequence)

    def cancel(self, sequence_id: SequenceId, now: float) -> None:
        """End a request and free its slots, at once or when the forward pass under way has ended.

        Nothing happens if it isn't alive (any more).
        """
        alive = self._completions.of(sequence_id)
        if alive:
            self._now = now
            self._end_soon(alive[0], Failure(FailureCode.CANCELLED, "the request was cancelled"))

    def add_adapter(self, revision: str) -> None:
        """From now on requests may name the adapter, which the source can bring to the device."""
        self._adapters.add(revision)

    def retire_adapter(self, revision: str, until: float, on_gone: OnGone) -> None:
        """Refuse new requests for an adapter, and take it away when those here have ended.

        Those that haven't by `until` fail. Then what the cache has of it is dropped, and `on_gone` is called.
        """
        self._departures.announce(revision, until, on_gone)

    def adapters(self) -> tuple[AdapterState, ...]:
        """Return the state of each adapter that requests may name or still use."""
        return self._adapters.states()

    def drop_cache(self, namespaces: Iterable[Namespace]) -> Holdings:
        """Drop what the cache has of namespaces; return what was free at once. What sequences use goes behind them."""
        return self._purges.drop(namespaces, self._completions)

    def describe_cache(self) -> CacheContents:
        """Return what lies in the cache, and whose it is. Costs O(namespaces)."""
        cache, tiers = self._cache, self._cache.tier_stats()
        host_slots, host_free = (0, 0) if tiers is None else (tiers.host_slots, tiers.host_free_slots)
        return CacheContents(cache.num_slots, cache.num_free_slots, host_slots, host_free, tuple(cache.tenants()))

    def take_cache_news(self) -> CacheNews | None:
        """Return what has changed in the cache since the last call; None: nothing."""
        return self._feed.take()

    def snapshot_cache(self) -> Snapshot:
        """Return all that the cache holds now. Costs O(nodes)."""
        return self._feed.snapshot()

    def close(self) -> None:
        """From now on refuse what is submitted; what is here goes on."""
        self._closed = True

    def abort(self, failure: Failure, now: float) -> None:
        """End every sequence with `failure`, even if what went wrong before goes wrong again."""
        self._now = now
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.results()  # its slots are free only when it has ended
        self._doomed = {}
        for sequence in self._completions:
            if sequence.ended:
                continue
            try:
                self._end(sequence, failure)
            except Exception as error:  # noqa: BLE001 - every one of them is owed its end
                report("sequence ended badly", error, request_id=sequence.request.request_id)
        self._departures.complete()

    def step(self, now: float) -> list[SequenceOutput]:
        """Make one step from beginning to end, and return the news of all sequences that have some."""
        self.begin(now)
        self.complete()
        self.observe_state()
        return self.take_outputs()

    def begin(self, now: float) -> None:
        """Decide a step and start its forward pass, if there is anything to compute."""
        assert self._under_way is None, "a step is under way"
        self._now = now
        for sequence in self._deadlines.expired(now):
            self._end(sequence, Failure(FailureCode.DEADLINE_EXCEEDED, "the deadline has passed"))
        self._end_without_adapter(now)
        self._cache.tick(now)
        step = self._scheduler.schedule(now)
        self._tell_admitted(step.admitted, now)
        for sequence in step.paused:
            self._observer.paused(sequence.request.tenant, sequence.request.adapter)
        self.last_step_tokens = step.num_tokens
        self._tell_started(step.started)
        if step.chunks:
            self._under_way = StepUnderWay.begin(self._executor, step, self._batches.build(step.chunks), now)

    def complete(self) -> None:
        """Wait for the forward pass that `begin` started, if it did, and take in what came of it.

        Decides who ends; what is to be told of it waits for `take_outputs`.
        """
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            self._take_in(under_way)
        doomed, self._doomed = self._doomed, {}
        for sequence, finish in doomed.values():
            if not sequence.ended:
                self._end(sequence, finish)
        if self._config.check and self._scheduler.num_running == 0:
            self.check()

    def take_outputs(self) -> list[SequenceOutput]:
        """Return the news not returned yet, with their text. At any time, best while a forward pass is under way."""
        while late := self._telling.make():
            for sequence, finish in late:
                self._end_soon(sequence, finish)
        return self._telling.take()

    def observe_state(self) -> None:
        """Tell the observer the state: sequences, slots, tiers."""
        evicted_tokens = self._cache.stats().evicted_tokens
        if evicted_tokens > self._evicted_tokens:
            self._observer.evicted(evicted_tokens - self._evicted_tokens)
            self._evicted_tokens = evicted_tokens
        self._observer.load_changed(self.load())
        self._observer.cache_changed(self._cache.num_namespaces, self._floors.cut_tokens)
        if durations := self._cache.take_durations():
            self._observer.copies_ended(durations)
        tiers = self._cache.tier_stats()
        if tiers is not None:
            self._observer.tiers_changed(tiers)

    def load(self) -> Load:
        """Return how busy the engine is. From any thread: true as of some moment just now."""
        tiers = self._cache.tier_speeds()
        return Load(
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            free_slots=self._cache.num_free_slots,
            evictable_slots=self._cache.num_evictable_slots,
            num_slots=self._cache.num_slots,
            links=self._scheduler.loads(),
            prefill_tokens_per_s=self._speeds.prefill_tokens_per_s,
            load_tokens_per_s=tiers.load_tokens_per_s,
            fetch_tokens_per_s=tiers.fetch_tokens_per_s,
            step_s=self._speeds.step_s,
        )

    def check(self) -> None:
        """Verify every invariant of engine and cache; raises AssertionError."""
        self._scheduler.check()
        alive = self._scheduler.num_running + self._scheduler.num_waiting
        assert alive == self._completions.num_alive, "the scheduler and the engine disagree on who is alive"
        self._completions.check()
        self._purges.check(self._completions)
        self._cache.check()

    def _refusal(self, request: Request) -> Failure | None:
        if self._closed:
            return Failure(FailureCode.SHUTTING_DOWN, "the worker is shutting down")
        if not self._adapters.knows(request.adapter_revision):
            return Failure(FailureCode.NOT_FOUND, f"adapter {request.adapter!r} is not loaded here", "adapter")
        failure = refusal(request, self._limits, self._cache.max_lease_slots_of(request.tenant))
        return self._room.refusal(request) if failure is None else failure

    def _begun(self, request: Request, now: float) -> tuple[Sequence, ...] | Failure:
        """Return what a request begins with, or why what is to go on has ended already."""
        begun = begin(request, self._num_submitted, now, self._limits)
        if isinstance(begun, Failure) or not (request.continued and request.params.stop):
            return begun
        stopped = [place for place, sequence in enumerate(begun) if self._telling.resume(sequence)]
        return has_ended(stopped[0], "a stop string has ended the completion") if stopped else begun

    def _make_room(self, request: Request, now: float) -> None:
        """End those that give way for a request, if there are so many here."""
        victims, failure = self._room.give_way(request)
        if victims:
            self._now = now
        for sequence in victims:
            self._end_one(sequence, failure)

    def _end_without_adapter(self, now: float) -> None:
        """End those whose adapter is taken away and out of time, or could not be brought to the device."""
        for revision in self._departures.out_of_time(now):
            self._end_users(revision, Failure(FailureCode.NOT_FOUND, "the adapter was unloaded", "adapter"))
        for revision in self._adapters.failed():
            self._end_users(revision, Failure(FailureCode.INTERNAL, "the adapter could not be brought to the device"))
        self._departures.complete()

    def _end_users(self, revision: str, failure: Failure) -> None:
        users = [each for each in self._completions if each.request.adapter_revision == revision]
        for sequence in users:
            self._departures.failed(sequence)
        for sequence in users:
            self._end(sequence, failure)

    def _take_in(self, under_way: StepUnderWay) -> None:
        step = under_way.step
        results = under_way.results()
        if self._clock is not None:
            self._now = self._clock()
        now, duration_s = self._now, self._now - under_way.began_at
        self._observer.stepped(self.last_step_tokens, len(step.chunks), duration_s)
        if results is None:
            for chunk in step.chunks:
                self._end(chunk.sequence, Failure(FailureCode.INTERNAL, "the forward pass failed"))
            return
        follows_loads = any(chunk.sequence.follows_load for chunk in step.chunks)
        # A pass that waited for copies says nothing of how fast prompts are computed.
        if not follows_loads:
            self._speeds.passed(self.last_step_tokens, step.num_prompt_tokens, duration_s)
        if self.last_step_tokens >= _PREFILL_TOKENS and not follows_loads:
            self._cache.observe_prefill(self.last_step_tokens, duration_s, now=now)
        if follows_loads:
            self._cache.tick(now)  # a load that the pass has followed is over, if it went well
        committed = self._scheduler.commit(step, now)
        self._tell_admitted(committed.admitted, now)
        for result in results:
            sequence = result.chunk.sequence
            if sequence.ended or sequence in committed.void or sequence.order in self._doomed:
                continue
            if result.scores:
                self._take_scores(sequence, result.scores)
            if result.tokens:
                self._take(sequence, result.tokens)

    def _tell_started(self, sequences: Iterable[Sequence]) -> None:
        """Note for those that start with this step when it had been decided."""
        if not sequences:
            return
        now = self._clock() if self._clock is not None else self._now
        for sequence in sequences:
            if sequence.lease is not None:  # else it was paused for another one
                (sequence.course.loads if sequence.awaits_load else sequence.course.computes)(now)

    def _tell_admitted(self, sequences: Iterable[Sequence], now: float) -> None:
        for sequence in sequences:
            assert sequence.admission is not None
            self._telling.admitted(sequence, sequence.admission, now)

    def _take_scores(self, sequence: Sequence, scores: list[SampledToken]) -> None:
        sequence.scored_until += len(scores)
        self._telling.scored(sequence, tuple([score.logprobs for score in scores if score.logprobs is not None]))

    def _take(self, sequence: Sequence, tokens: list[SampledToken]) -> None:
        """Take in the sampled token, or of a leader the first tokens of all completions, which begin to be."""
        for token in tokens:
            if not 0 <= token.token_id < self._limits.vocab_size:
                # Computed in the next step it would end that step for all its neighbours.
                outside = IndexError("a token id is outside of the vocabulary")
                report("sampling failed", outside, request_id=sequence.request.request_id)
                self._end(sequence, Failure(FailureCode.INTERNAL, "no token could be sampled"))
                return
        gap_s = self._now - sequence.last_token_at
        sequence.append(tokens[0].token_id, self._now)
        begun = [sequence, *self._branches(sequence, tokens[1:])]
        for each, token in zip(begun, tokens, strict=True):
            if not each.ended:
                self._decide(each, token, gap_s)

    def _branches(self, leader: Sequence, tokens: list[SampledToken]) -> list[Sequence]:
        """Begin the other completions of a request: they wait for their turn, with the prompt in the cache."""
        branches = [leader.branch(index, token.token_id, self._now) for index, token in enumerate(tokens, 1)]
        if branches:
            self._completions.born(leader, branches)
            self._purges.born(leader, branches)
        for branch in branches:
            self._scheduler.join(branch)
            self._adapters.joined(branch)
            self._deadlines.watch(branch)
        return branches

    def _decide(self, sequence: Sequence, token: SampledToken, gap_s: float) -> None:
        """Decide what a token means for its sequence, and let that go if it was the last."""
        finish: FinishReason | Failure | None
        try:
            finish = self._finish(sequence, token.token_id)
        except ConstraintFailed as error:
            report("constraint failed", error, request_id=sequence.request.request_id)
            self._end(sequence, _constraint_failure(error))
            return
        text = None
        if sequence.params.stop:
            # Its text decides whether it goes on, so it can't wait.
            text, finish = self._telling.read(sequence, token.token_id, finish)
        self._telling.sampled(sequence, token, gap_s, text, finish, self._now)
        if isinstance(finish, Failure):
            self._let_go(sequence)
            self._end_all(sequence.request.sequence_id, finish)
        elif finish is not None:
            self._let_go(sequence)

    def _finish(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        """Return how a sequence ends with its newest token, if it does. Raises ConstraintFailed."""
        if token_id in sequence.end_token_ids:
            return FinishReason.STOP
        if sequence.constraint is not None and not sequence.constraint.accept(token_id):
            return FinishReason.STOP
        return FinishReason.LENGTH if len(sequence.outputs) == sequence.params.max_new_tokens else None

    def _end_soon(self, sequence: Sequence, finish: FinishReason | Failure) -> None:
        """End a sequence: at once, or when the forward pass that uses its slots has ended. With a Failure, all of it.

        Those of its request that don't compute now end at once.
        """
        ending = (sequence,) if isinstance(finish, FinishReason) else self._completions.of(sequence.request.sequence_id)
        for each in ending:
            if self._under_way is not None and self._under_way.step.computes(each):
                self._doomed.setdefault(each.order, (each, finish))
            else:
                self._end_one(each, finish)

    def _end(self, sequence: Sequence, finish: FinishReason | Failure) -> None:
        """End a sequence that no forward pass uses, and with a Failure all of its request."""
        if isinstance(finish, Failure):
            self._end_all(sequence.request.sequence_id, finish)
        elif not sequence.ended:
            self._end_one(sequence, finish)

    def _end_all(self, sequence_id: SequenceId, failure: Failure) -> None:
        for sequence in self._completions.of(sequence_id):
            self._end_one(sequence, failure)

    def _end_one(self, sequence: Sequence, finish: FinishReason | Failure) -> None:
        self._telling.ended(sequence, finish, self._now)
        self._let_go(sequence)

    def _let_go(self, sequence: Sequence) -> None:
        """A sequence has ended, and that is told: free what it holds."""
        sequence.ended = True
        sequence.course.ended(self._now)
        self._completions.remove(sequence)
        sequence.is_last = sequence.request.sequence_id not in self._completions
        self._deadlines.ended(sequence)
        self._scheduler.remove(sequence, self._now)
        self._adapters.left(sequence)
        self._purges.ended(sequence)


def _constraint_failure(error: ConstraintFailed) -> Failure:
    message = f"the completion can't be held to its constraint any further: {error}"
    return Failure(FailureCode.INVALID_ARGUMENT, message, "sampling")
